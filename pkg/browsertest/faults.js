// What can be seen to be wrong with a page: a list of sentences.
(() => {
  const found = new Set(), slack = 1.5;
  const short = e => `<${e.tagName.toLowerCase()}> ${JSON.stringify((e.textContent ?? "").trim().slice(0, 40))}`;
  const seen = e => e.checkVisibility({visibilityProperty: true}) && e.getBoundingClientRect().width > 0;
  const above = function* (e) { for (e = e.parentElement; e; e = e.parentElement) yield e; };
  const width = document.documentElement.clientWidth;
  if (document.documentElement.scrollWidth > width + slack) found.add(`the page is ${document.documentElement.scrollWidth} wide, the screen ${width}`);

  // Nothing reaches out of the screen, but for what scrolls within itself.
  for (const e of document.body.querySelectorAll("*")) {
    if (!seen(e) || e.closest("svg") !== null && e.tagName !== "svg") continue;
    if ([...above(e)].some(a => /auto|scroll|hidden/.test(getComputedStyle(a).overflowX))) continue;
    const box = e.getBoundingClientRect();
    if (box.right > width + slack || box.left < -slack) found.add(`${short(e)} reaches from ${box.left} to ${box.right} of ${width}`);
  }

  // Texts of a picture are in it, large enough to be read, and in their tile.
  const texts = [...document.querySelectorAll("svg text")].filter(seen);
  for (const text of texts) {
    const picture = text.ownerSVGElement.getBoundingClientRect(), box = text.getBoundingClientRect();
    const inside = (box, of) => box.left >= of.left - slack && box.right <= of.right + slack && box.top >= of.top - slack && box.bottom <= of.bottom + slack;
    if (!inside(box, picture)) found.add(`${short(text)} reaches out of its picture`);
    const tile = text.closest("g:has(> title)");
    const rects = tile === null ? [] : [...tile.querySelectorAll(":scope > rect")];
    if (rects.length > 0 && !rects.some(r => inside(box, r.getBoundingClientRect()))) found.add(`${short(text)} reaches out of its tile`);
  }

  // No text of a picture lies on another.
  for (const picture of new Set(texts.map(t => t.ownerSVGElement))) {
    const all = texts.filter(t => t.ownerSVGElement === picture).map(t => ({t, b: t.getBoundingClientRect()}));
    all.forEach(({t, b}, i) => all.slice(i + 1).forEach(({t: u, b: c}) => {
      const across = Math.min(b.right, c.right) - Math.max(b.left, c.left), up = Math.min(b.bottom, c.bottom) - Math.max(b.top, c.top);
      if (across > slack && up > 0.4 * Math.min(b.height, c.height, b.width, c.width)) found.add(`${short(t)} and ${short(u)} lie on each other`);
    }));
  }

  // Texts differ from what is behind them: 4.5 to 1, as WCAG 2 wants it.
  const parts = colour => (colour.match(/[\d.]+/g) ?? []).map(Number);
  const luminance = c => {
    const [r, g, b] = c.map(v => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const opaque = colour => colour.startsWith("rgb") && (parts(colour)[3] ?? 1) === 1;
  const behind = e => {
    for (const a of [e, ...above(e)]) {
      const colour = getComputedStyle(a).backgroundColor;
      if (opaque(colour)) return colour;
    }
    return "rgb(255, 255, 255)";
  };
  const within = (box, x, y) => x >= box.left && x <= box.right && y >= box.top && y <= box.bottom;
  const drawn = [...document.querySelectorAll("svg rect")].map(r => ({r, box: r.getBoundingClientRect(), fill: getComputedStyle(r).fill})).filter(d => opaque(d.fill));
  const behindDrawn = text => {
    const box = text.getBoundingClientRect(), x = box.left + box.width / 2, y = box.top + box.height / 2;
    const under = drawn.findLast(d => within(d.box, x, y) && d.r.compareDocumentPosition(text) & Node.DOCUMENT_POSITION_FOLLOWING);
    return under?.fill ?? behind(text.ownerSVGElement);
  };
  const check = (e, colour, paper) => {
    const [a, b] = [luminance(parts(colour).slice(0, 3)), luminance(parts(paper).slice(0, 3))].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    if (ratio < 4.5) found.add(`${short(e)} is ${colour} on ${paper}, ${ratio.toFixed(2)} to 1`);
  };
  for (const text of texts) {
    const colour = getComputedStyle(text).fill;
    if (opaque(colour)) check(text, colour, behindDrawn(text));
  }
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const e = walk.currentNode.parentElement;
    if (walk.currentNode.data.trim() === "" || e.closest("svg, script, style, title") !== null || !seen(e)) continue;
    check(e, getComputedStyle(e).color, behind(e));
  }
  return [...found];
})()
