// A text area for JSON whose words are coloured and whose mistake is marked where it is; the colours lie behind it.
import { h, replace } from './dom.js';

const TOKEN = /("(?:[^"\\\n]|\\.)*"?)(\s*:)?|(-?\d[\d.eE+-]*)|\b(true|false|null)\b/g;
const LARGEST = 60000;

export function jsonEditor(text, attributes, look = 'div.editor') {
  const box = h('textarea', { value: text, spellcheck: 'false', autocapitalize: 'off', autocomplete: 'off', ...attributes });
  const back = h('pre', { 'aria-hidden': 'true' });
  let wrong = null;
  const paint = () => {
    const value = box.value;
    const nodes = [];
    let at = 0;
    const plain = (to) => { if (to > at) nodes.push(...pieces(value, at, to, '', wrong)); at = to; };
    if (value.length <= LARGEST) {
      for (const found of value.matchAll(TOKEN)) {
        plain(found.index);
        const word = found[1] || found[3] || found[4];
        nodes.push(...pieces(value, at, at + word.length, found[1] ? (found[2] ? 'tok-key' : 'tok-str') : found[3] ? 'tok-num' : 'tok-word', wrong));
        at += word.length;
      }
    }
    plain(value.length);
    replace(back, nodes, '\n');
    back.scrollTop = box.scrollTop;
  };
  box.addEventListener('input', () => { wrong = null; paint(); });
  box.addEventListener('scroll', () => { back.scrollTop = box.scrollTop; }, { passive: true });
  paint();
  return { node: h(look, {}, back, box), box, mark: (range) => { wrong = range; paint(); } };
}

function pieces(value, from, to, look, wrong) {
  if (!wrong || wrong[1] <= from || wrong[0] >= to) return [h('span', { class: look }, value.slice(from, to))];
  const cuts = [from, Math.max(from, wrong[0]), Math.min(to, wrong[1]), to];
  return [0, 1, 2].filter((index) => cuts[index + 1] > cuts[index]).map((index) => h('span', { class: index === 1 ? `${look} wrong` : look }, value.slice(cuts[index], cuts[index + 1])));
}

/** Where in a JSON text a JSON pointer points: the range of the value, or of the key where it stops being found. */
export function rangeOf(text, pointer) {
  const steps = String(pointer).replace(/^#/, '').split('/').slice(1).map((step) => step.replaceAll('~1', '/').replaceAll('~0', '~'));
  let at = 0;
  const blank = () => { while (at < text.length && ' \t\r\n'.includes(text[at])) at += 1; };
  const string = () => { const start = at; at += 1; while (at < text.length && text[at] !== '"') at += text[at] === '\\' ? 2 : 1; at += 1; return text.slice(start, at); };
  const skip = () => {
    blank();
    let depth = 0;
    do {
      if (text[at] === '"') string();
      else { if ('{['.includes(text[at])) depth += 1; else if ('}]'.includes(text[at])) depth -= 1; at += 1; }
      if (depth === 0 && (',}]'.includes(text[at]) || at >= text.length)) return;
    } while (at < text.length);
  };
  let range = [0, Math.min(text.length, 1)];
  for (const step of steps) {
    blank();
    const isList = text[at] === '[';
    if (!isList && text[at] !== '{') break;
    at += 1;
    let index = 0;
    let found = false;
    while (at < text.length && !found) {
      blank();
      if (text[at] === ',') { at += 1; index += 1; continue; }
      if (text[at] === '}' || text[at] === ']' || text[at] === undefined) return range;
      let key = String(index);
      if (!isList) {
        if (text[at] !== '"') return range;
        const from = at;
        try { key = JSON.parse(string()); } catch { return range; }
        if (key === step) range = [from, at];
        blank();
        at += 1;
      }
      if (key === step) found = true; else skip();
    }
    if (!found) return range;
  }
  blank();
  const start = at;
  skip();
  return steps.length ? [start, Math.max(start + 1, Math.min(at, text.length))] : range;
}

/** The place that the browser's complaint about JSON names. */
export function placeOf(message, text) {
  const found = /position (\d+)/.exec(message);
  const at = found ? Math.min(Number(found[1]), Math.max(0, text.length - 1)) : Math.max(0, text.length - 1);
  return [at, at + 1];
}
