// Build the page without ever making HTML of text: what models and callers wrote is only ever text.

/** Characters that would not show, or would turn the text around, as visible signs. */
const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f\u202a-\u202e\u2066-\u2069\u200e\u200f]/g;

export function visible(text) {
  return String(text).replace(HIDDEN, (c) => {
    const code = c.charCodeAt(0);
    return code < 0x20 ? String.fromCharCode(0x2400 + code) : code === 0x7f ? '␡' : '⍰';
  });
}

/** An element: `h('a', {href: '…', class: '…', onclick: f}, 'text', child, [children])`. */
export function h(tag, attributes, ...children) {
  const node = tag === 'svg' || tag === 'rect' || tag === 'title' && attributes && attributes.svg
    ? document.createElementNS('http://www.w3.org/2000/svg', tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false || name === 'svg') continue;
    if (name.startsWith('on')) node.addEventListener(name.slice(2), value);
    else if (name === 'value' || name === 'checked' || name === 'disabled' || name === 'selected') node[name] = value;
    else node.setAttribute(name, value === true ? '' : String(value));
  }
  node.append(...children.flat(4).filter((c) => c !== null && c !== undefined && c !== false)
    .map((c) => (c instanceof Node ? c : document.createTextNode(visible(c)))));
  return node;
}

export function replace(node, ...children) {
  node.replaceChildren(...children.flat(4).filter((c) => c !== null && c !== undefined && c !== false)
    .map((c) => (c instanceof Node ? c : document.createTextNode(visible(c)))));
  return node;
}

export const none = '–';
export const ms = (value) => (value === null || value === undefined ? none : value < 1000 ? `${Math.round(value)} ms` : `${(value / 1000).toFixed(2)} s`);
export const money = (value) => (value === null || value === undefined ? none : `$${value < 0.01 ? value.toFixed(5) : value.toFixed(3)}`);
export const count = (value) => (value === null || value === undefined ? none : value.toLocaleString('en'));
export const percent = (value) => (value === null || value === undefined ? none : `${(100 * value).toFixed(1)} %`);
export const clock = (at) => new Date(at * 1000).toLocaleTimeString('en-GB');

const STAGES = {
  first: ['✓ first try', 'good'], repaired: ['✎ repaired', 'good'], reasked: ['↻ retried', 'warn'], failed: ['✗ failed', 'bad'],
  passed: ['→ passed', 'muted'], cached: ['≡ cached', 'muted'], under_way: ['… under way', 'warn'],
};

export function stage(row) {
  const [text, look] = STAGES[row.stage] || [row.stage, 'muted'];
  return h('span', { class: look }, text);
}

export async function copy(text, button) {
  const before = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = 'copied';
  } catch {
    const box = h('textarea', { value: text, 'aria-label': 'to copy' });
    button.after(box);
    box.select();
    button.textContent = 'select and copy';
  }
  setTimeout(() => { button.textContent = before; }, 1500);
}

export function download(name, text) {
  const url = URL.createObjectURL(new Blob([text], { type: 'application/json' }));
  const link = h('a', { href: url, download: name });
  link.click();
  URL.revokeObjectURL(url);
}

/** A table that scrolls by itself and can be reached by keyboard. */
export function table(heads, rows, label) {
  return h('div', { class: 'scroll', tabindex: '0', role: 'region', 'aria-label': label },
    h('table', {}, h('thead', {}, h('tr', {}, heads.map((head) => h('th', { scope: 'col' }, head)))),
      h('tbody', {}, rows.map((cells) => h('tr', {}, cells.map((cell) => h('td', {}, cell)))))));
}
