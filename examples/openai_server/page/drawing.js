// Pieces of the page, changed only where they differ: what has the focus keeps it, and a reader is not disturbed.

const SVG = 'http://www.w3.org/2000/svg';
const CELL = 10;
const CELLS_MOST = 256;

/** The element of that role in a copy of a template. */
export function part(root, name) {
  return root.querySelector(`[data-part="${name}"]`);
}

export function copy(template) {
  return document.getElementById(template).content.firstElementChild.cloneNode(true);
}

export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function mark(element, name, value) {
  if (element.getAttribute(name) !== String(value)) element.setAttribute(name, value);
}

/** One child for each item, found again by its key. They are never moved: items come in an order that stays. */
export function keyed(parent, items, keyOf, make, update) {
  const before = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  const keys = new Set(items.map((item) => String(keyOf(item))));
  for (const [key, child] of before) if (!keys.has(key)) leave(child);
  let place = parent.firstElementChild;
  for (const item of items) {
    const key = String(keyOf(item));
    let child = before.get(key);
    if (!child) {
      child = make(item);
      child.dataset.key = key;
      parent.insertBefore(child, place);
    } else if (child === place) {
      place = place.nextElementSibling;
    }
    update(child, item);
  }
}

/** Gone, and the focus, if it was in there, goes to the same button of a neighbour, or to the heading. */
function leave(child) {
  if (child.contains(document.activeElement)) {
    const act = document.activeElement.dataset.act;
    const near = [child.nextElementSibling, child.previousElementSibling];
    const next = near.map((row) => row?.querySelector(`button[data-act="${act}"]:not([hidden])`)).find(Boolean);
    (next ?? child.closest('section').querySelector('[tabindex="-1"]'))?.focus();
  }
  child.remove();
}

/** A bar: how full, and how bad. */
export function bar(element, share, grade) {
  const full = Math.min(1, Math.max(share > 0 ? 0.02 : 0, share || 0));
  element.firstElementChild.style.inlineSize = `${(100 * full).toFixed(1)}%`;
  mark(element, 'data-grade', grade);
}

/** A square for each block, or for several; what is more than nothing is seen. Kinds: [class, how many], in order. */
export function squares(svg, total, kinds, columns) {
  const each = Math.max(1, Math.ceil(total / CELLS_MOST));
  const count = Math.ceil(total / each);
  const across = Math.min(columns, Math.max(1, count));
  mark(svg, 'viewBox', `-1 -1 ${columns * CELL} ${Math.max(1, Math.ceil(count / across)) * CELL}`);
  let from = 0;
  let blocks = 0;
  for (const [kind, figure] of kinds) {
    blocks += figure;
    const to = Math.min(count, Math.max(Math.ceil(blocks / each), figure > 0 ? from + 1 : from));
    cells(svg, kind, from, to, across);
    from = to;
  }
  cells(svg, 'free', from, count, across);
  return each;
}

function cells(svg, kind, from, to, across) {
  let path = svg.querySelector(`.${kind}`);
  if (!path) {
    path = document.createElementNS(SVG, 'path');
    path.setAttribute('class', kind);
    svg.append(path);
  }
  const wide = CELL - 2;
  let drawn = '';
  for (let index = from; index < to; index += 1) {
    const x = (index % across) * CELL;
    const y = Math.floor(index / across) * CELL;
    drawn += `M${x} ${y}h${wide}v${wide}h-${wide}z`;
    if (kind === 'reserved' || kind === 'stopping') drawn += `M${x} ${y + wide}l${wide} -${wide}`;
  }
  mark(path, 'd', drawn);
}
