// A large page has each function's part packed, and unpacks it when it is opened.
for (const part of document.querySelectorAll("details.function")) {
  part.addEventListener("toggle", async () => {
    const packed = part.querySelector("script");
    if (!packed) return;
    packed.remove();
    const bytes = Uint8Array.from(atob(packed.textContent), c => c.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    part.querySelector(".body").innerHTML = await new Response(stream).text();
  });
}
const reveal = () => {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  const part = target ? target.closest("details.function") : null;
  if (part) part.open = true;
  if (target) target.scrollIntoView();
};
addEventListener("hashchange", reveal);
reveal();
