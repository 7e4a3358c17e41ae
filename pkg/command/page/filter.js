// Shows only the rows of the page's tables that contain all words of the input.
const filter = document.querySelector(".filter"), input = filter.querySelector("input");
const rows = [...document.querySelectorAll("tr")].filter(row => row.querySelector("td"));
const closed = [...document.querySelectorAll("details:not([open])")].filter(details => details.querySelector("tr"));
input.addEventListener("input", () => {
  const words = input.value.toLowerCase().split(/\s+/).filter(word => word);
  let shown = 0;
  for (const row of rows) {
    const text = [...row.cells].map(cell => cell.textContent).join(" ").toLowerCase();
    row.hidden = !words.every(word => text.includes(word));
    shown += row.hidden ? 0 : 1;
  }
  for (const details of closed) details.open = words.length > 0;
  filter.querySelector("output").textContent = words.length > 0 ? `${shown} of ${rows.length} rows` : "";
});
filter.hidden = false;
