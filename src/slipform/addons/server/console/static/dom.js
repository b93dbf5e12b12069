// Build the page without ever making HTML of text: what models and callers wrote is only ever text.

/** Characters that would not show, or would turn the text around, as visible signs; halves of pairs too. */
const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g;

export function visible(text) {
  return String(text).replace(HIDDEN, (c) => {
    const code = c.charCodeAt(0);
    return code < 0x20 ? String.fromCharCode(0x2400 + code) : code === 0x7f ? '␡' : '⍰';
  });
}

const DRAWN = new Set(['svg', 'rect', 'path', 'line', 'text', 'circle', 'g']);

/** An element: `h('a.look', {href: '…', onclick: f}, 'text', child, [children])`. Attributes may be left out where the first
 * child is written out as a text, an element or a list; before any other they stand, if only as {}, so that no data is taken for them. */
export function h(name, attributes, ...children) {
  const [tag, ...looks] = name.split('.');
  const node = DRAWN.has(tag) ? document.createElementNS('http://www.w3.org/2000/svg', tag) : document.createElement(tag);
  if (looks.length) node.setAttribute('class', looks.join(' '));
  if (attributes && (typeof attributes !== 'object' || Array.isArray(attributes) || attributes instanceof Node)) return node.append(...nodes([attributes, ...children])), node;
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith('on')) node.addEventListener(name.slice(2), value);
    else if (name === 'value' || name === 'checked' || name === 'disabled' || name === 'selected' || name === 'open') node[name] = value;
    else node.setAttribute(name, value === true ? '' : String(value));
  }
  node.append(...nodes(children));
  return node;
}

const nodes = (children) => children.flat(5).filter((c) => c !== null && c !== undefined && c !== false && c !== true)
  .map((c) => (c instanceof Node ? c : document.createTextNode(visible(c))));

export function replace(node, ...children) {
  node.replaceChildren(...nodes(children));
  return node;
}

/** Drawings of 24 by 24, as lines. */
const ICONS = {
  overview: 'M4 20V10M10 20V4M16 20v-7M22 20H2', traffic: 'M3 6h18M3 12h12M3 18h15', playground: 'M7 4l12 8-12 8z', schemas: 'M8 3H6a2 2 0 0 0-2 2v4l-2 3 2 3v4a2 2 0 0 0 2 2h2M16 3h2a2 2 0 0 1 2 2v4l2 3-2 3v4a2 2 0 0 1-2 2h-2',
  providers: 'M4 5h16v5H4zM4 14h16v5H4zM8 7.5h.01M8 16.5h.01', keys: 'M15 9a4 4 0 1 0-3.9 4L13 15h2v2h2v2h3v-3l-5.2-5.2A4 4 0 0 0 15 9z', api: 'M8 8l-5 4 5 4M16 8l5 4-5 4M13.5 5l-3 14', about: 'M12 21a9 9 0 1 0 0-18 9 9 0 0 0 0 18zM12 11v5M12 8h.01',
  search: 'M11 18a7 7 0 1 0 0-14 7 7 0 0 0 0 14zM20 20l-4-4', pause: 'M8 5v14M16 5v14', play: 'M7 4l12 8-12 8z', back: 'M15 5l-7 7 7 7', copy: 'M9 9h11v11H9zM5 15H4V4h11v1', pin: 'M9 3h6l-1 7 3 3H7l3-3zM12 13v8', save: 'M12 4v11M7 11l5 5 5-5M4 20h16',
  theme: 'M20 14.5A8 8 0 0 1 9.5 4a8 8 0 1 0 10.5 10.5z', help: 'M9.2 9a3 3 0 1 1 4.3 2.7c-1 .5-1.5 1-1.5 2.3M12 17.5h.01M12 21a9 9 0 1 0 0-18 9 9 0 0 0 0 18z', out: 'M14 4h5v16h-5M10 8l-4 4 4 4M6 12h9', stop: 'M6 6h12v12H6z', end: 'M5 5l10 7-10 7zM19 5v14', open: 'M14 4h6v6M20 4l-9 9M10 5H5v14h14v-5',
};
export function icon(name) {
  return h('svg', { viewBox: '0 0 24 24', 'aria-hidden': 'true', fill: 'none', stroke: 'currentColor', 'stroke-width': '2', 'stroke-linecap': 'round', 'stroke-linejoin': 'round' }, h('path', { d: ICONS[name] }));
}

export const none = '–';
const isKnown = (value) => value !== null && value !== undefined;
export const ms = (value) => (!isKnown(value) ? none : value < 10 ? `${value.toFixed(1)} ms` : value < 1000 ? `${Math.round(value)} ms` : `${(value / 1000).toFixed(2)} s`);
export const money = (value) => (!isKnown(value) ? none : `$${value === 0 ? '0' : value < 0.01 ? value.toFixed(5) : value.toFixed(3)}`);
export const count = (value) => (!isKnown(value) ? none : value.toLocaleString('en'));
export const percent = (value) => (!isKnown(value) ? none : `${(100 * value).toFixed(1)} %`);
export const clock = (at) => new Date(at * 1000).toLocaleTimeString('en-GB');
export const bytes = (value) => (!isKnown(value) ? none : value < 1024 ? `${value} B` : value < 1048576 ? `${(value / 1024).toFixed(1)} KB` : `${(value / 1048576).toFixed(1)} MB`);
export const ago = (at) => {
  if (!isKnown(at)) return none;
  const seconds = Math.max(0, Date.now() / 1000 - at);
  return seconds < 60 ? 'just now' : seconds < 3600 ? `${Math.floor(seconds / 60)} min ago` : seconds < 86400 ? `${Math.floor(seconds / 3600)} h ago` : new Date(at * 1000).toISOString().slice(0, 10);
};

export const STAGES = { first: ['✓ first try', 'good'], repaired: ['✎ repaired', 'note-c'], reasked: ['↻ retried', 'warn'], failed: ['✗ failed', 'bad'], passed: ['passed through', ''], cached: ['≡ cached', ''], under_way: ['pouring', 'run'] };

export function stage(row) {
  let [text, look] = STAGES[row.stage] || [row.stage, ''];
  // Valid as it came, but not the first thing that was tried.
  const isAnswered = (row.stage === 'reasked' && row.attempts === 1) || row.stage === 'passed';
  if (isAnswered && row.fallbacks) [text, look] = ['⇢ fallback', 'warn'];
  else if (isAnswered && (row.waited || row.detail?.notes?.includes('vendor_retried'))) [text, look] = ['↻ after a wait', 'warn'];
  else if (row.outcome === 'refusal') text = '✗ refused';
  else if (row.outcome === 'truncated') text = '✗ cut off';
  else if (row.stage === 'failed' && row.status >= 400) text = `✗ failed, ${row.status}`;
  return h('span', { class: `pill ${look}` }, text);
}

export async function copy(text, button) {
  const before = [...button.childNodes];
  const tell = (said) => { replace(button, said); setTimeout(() => replace(button, before), 1500); };
  try {
    await navigator.clipboard.writeText(text);
    tell('copied');
  } catch {
    const box = h('textarea', { value: text, 'aria-label': 'to copy', readonly: true });
    document.querySelector('main').prepend(box);
    box.focus();
    box.select();
    tell('select and copy');
  }
}

export function download(name, text) {
  const url = URL.createObjectURL(new Blob([text], { type: 'application/json' }));
  h('a', { href: url, download: name }).click();
  URL.revokeObjectURL(url);
}

/** A table that scrolls by itself and can be reached by keyboard; columns in `figures` are right-aligned. */
export function table(heads, rows, label, figures = []) {
  const look = (index) => (figures.includes(index) ? { class: 'num' } : {});
  return h('div.scroll', { tabindex: '0', role: 'region', 'aria-label': label },
    h('table', { class: heads.some(Boolean) ? null : 'pairs' }, heads.some(Boolean) ? h('thead', h('tr', {}, heads.map((head, index) => h('th', { scope: 'col', ...look(index) }, head)))) : null,
      h('tbody', {}, rows.map((cells) => h('tr', {}, cells.map((cell, index) => h('td', look(index), cell)))))));
}

/** The top of a page: its name, a sentence, and what can be done. */
export function head(title, sentence, ...tools) {
  return h('div.head', h('h1', {}, title), h('span.space'), tools, sentence ? h('p.sub', {}, sentence) : null);
}

export function width(node, share) {
  node.style.width = `${Math.max(0, Math.min(100, 100 * share))}%`;
  return node;
}

/** A value that a long text may not stretch the page with: its beginning, and a way to have it whole. */
export function long(text, label, largest = 64 * 1024) {
  const whole = String(text);
  const shown = whole.length > largest ? whole.slice(0, largest) : whole;
  return [h('pre.pour', { tabindex: '0', 'aria-label': label }, shown),
    whole.length > largest ? h('p.label', `The first ${bytes(largest)} of ${bytes(whole.length)}. `, h('button', { onclick: () => download('whole.slipform.json', JSON.stringify(whole)) }, 'download it whole')) : null];
}
