// One row: its source with the places of its values coloured, and the tree of its values beside it.
import { h, replace } from './dom.js';
import { isContainer, isEmpty, leavesOf, pointerOf, typed, unitsOf } from './review_values.js';

const HUES = 8;
const HOW = { exact: 'exact', normalised: 'normalized', fuzzy: 'fuzzy', partial: 'partial' };

/** Whether a value should be in its source: not null, booleans, listed values, and empty texts that may be left out. */
function shouldBeThere(evidence, value) {
  return evidence.missing || (!evidence.listed && value !== null && value !== '' && typeof value !== 'boolean' && !isContainer(value));
}

/** How much a value needs a look: its score, or what its place in the source says where there is none. */
export function doubt(evidence, value) {
  if (typeof evidence.confidence === 'number') return evidence.confidence;
  return evidence.spans.length || !shouldBeThere(evidence, value) ? 1 : 0;
}

/** The evidence of a row with its places in the units of strings. */
export function evidenceOf(row) {
  const found = Object.entries(row.evidence || {});
  const unit = unitsOf(row.source, found.flatMap(([, each]) => each.spans.flatMap((span) => [span.start, span.end])));
  return new Map(found.map(([pointer, each]) => [pointer, { ...each, spans: each.spans.map((span) => ({ ...span, start: unit(span.start), end: unit(span.end) })) }]));
}

const NOTHING = { spans: [], confidence: null };

export function rowView(actions) {
  const source = h('pre', { class: 'source', tabindex: '0', role: 'region', 'aria-label': 'Source' });
  const picture = h('div', { class: 'picture', tabindex: '0', role: 'region', 'aria-label': 'Pages' });
  const tabs = h('span', { class: 'tabs' });
  const pageLines = document.getElementById('pages').textContent.split('\n');
  let isPicture = true;
  const tree = h('div', { class: 'values' });
  let shown = null;

  function evidence(pointer) { return shown.evidence.get(pointer) || NOTHING; }

  function drawSource() {
    const { row, leaves } = shown;
    const places = leaves.flatMap((leaf, number) => evidence(leaf.pointer).spans.map((span) => ({ ...span, leaf, number })));
    const edges = [...new Set([0, row.source.length, ...places.flatMap((span) => [span.start, span.end])])].sort((a, b) => a - b);
    const starts = Map.groupBy(places, (span) => span.start);
    let open = [];
    const pieces = edges.slice(0, -1).map((start, index) => {
      const text = row.source.slice(start, edges[index + 1]);
      open = open.filter((span) => span.end > start).concat(starts.get(start) || []);
      if (!open.length) return text;
      const here = [...open].sort((a, b) => (a.end - a.start) - (b.end - b.start));
      const top = here.find((span) => span.leaf.pointer === shown.selected) || here[0];
      const next = here[(here.indexOf(top) + 1) % here.length];
      const choose = () => actions.select((top.leaf.pointer === shown.selected ? next : top).leaf.pointer);
      const isSelected = top.leaf.pointer === shown.selected;
      return h('mark', { class: `hue${top.number % HUES} ${top.how}${isSelected ? ' selected' : ''}`, role: 'button', tabindex: '0', 'data-pointer': top.leaf.pointer,
        title: here.map((span) => `${span.leaf.pointer || '/'}: ${HOW[span.how] || span.how}${span.ambiguous ? ', one of several places' : ''}`).join('\n'),
        onclick: choose, onkeydown: (event) => { if (event.key === 'Enter' || event.key === ' ') { event.preventDefault(); event.stopPropagation(); choose(); } } }, text);
    });
    replace(source, pieces.length ? pieces : h('span', { class: 'muted' }, 'There is no source.'));
  }

  /** The pages of the row as they look, with a box around each value; without an image the text is all there is. */
  function drawPages() {
    const pages = shown.row.pages || [];
    const hasPages = pages.length > 0;
    const choose = (value) => () => { isPicture = value; actions.select(shown.selected); };
    replace(tabs, hasPages ? [['page', true], ['text', false]].map(([name, value]) => h('button', { 'aria-pressed': String(isPicture === value), onclick: choose(value) }, name)) : []);
    picture.hidden = !hasPages || !isPicture;
    source.hidden = hasPages && isPicture;
    if (picture.hidden) { replace(picture); return; }
    replace(picture, pages.map((number) => {
      const page = JSON.parse(pageLines[number]);
      const boxes = shown.leaves.flatMap((leaf, at) => (shown.row.boxes[leaf.pointer] || []).filter((box) => box[0] === number).map((box) => boxOf(page, box, leaf, at)));
      return h('figure', {}, h('img', { src: `data:image/png;base64,${page.png}`, alt: page.name }), boxes);
    }));
  }

  function boxOf(page, [, x0, y0, x1, y1], leaf, at) {
    const isSelected = leaf.pointer === shown.selected;
    const node = h('button', { class: `box hue${at % HUES}${isSelected ? ' selected' : ''}`, 'data-pointer': leaf.pointer, title: leaf.pointer || '/', 'aria-label': `the place of ${leaf.pointer || 'the value'}`, onclick: () => actions.select(leaf.pointer) });
    Object.assign(node.style, { left: `${(100 * x0) / page.width}%`, top: `${100 * (1 - y1 / page.height)}%`, width: `${(100 * (x1 - x0)) / page.width}%`, height: `${(100 * (y1 - y0)) / page.height}%` });
    return node;
  }

  function score(found) {
    if (typeof found.confidence !== 'number') return found.reason ? h('span', { class: 'muted', title: found.reason }, 'no score') : null;
    const look = found.confidence < 0.5 ? 'bad' : found.confidence < 0.8 ? 'warn' : 'good';
    const told = found.votes !== undefined && found.votes !== null ? `${found.votes} of ${found.samples} further answers agree` : 'from the probabilities of its tokens';
    return h('span', { class: `score ${look}`, title: `score ${found.confidence.toFixed(3)}: ${told}; no probability of being right` }, found.confidence.toFixed(2));
  }

  function notes(leaf, found, mark) {
    const says = doubt({ ...found, confidence: null }, leaf.value) === 0;
    const hows = new Set(found.spans.map((span) => span.how));
    return [
      score(found),
      says && !mark ? h('span', { class: 'tag bad' }, found.missing ? 'missing' : 'not in the source') : null,
      found.spans.some((span) => span.ambiguous) ? h('span', { class: 'tag warn' }, `${found.spans.length} places`) : null,
      ...['fuzzy', 'partial'].filter((how) => hows.has(how)).map((how) => h('span', { class: 'tag warn' }, HOW[how])),
      ...(found.touched || []).map((what) => h('span', { class: 'tag muted' }, what)),
    ];
  }

  function leafLine(name, leaf, number) {
    const mark = shown.marks[leaf.pointer];
    const found = evidence(leaf.pointer);
    const isSelected = leaf.pointer === shown.selected;
    const look = `leaf${isSelected ? ' selected' : ''}${mark ? ` ${mark}` : ''}`;
    const text = isEmpty(leaf.value) ? (Array.isArray(leaf.value) ? '[ ]' : '{ }') : typeof leaf.value === 'string' ? leaf.value : JSON.stringify(leaf.value);
    return h('li', { class: look },
      h('span', { class: 'line' },
        h('button', { class: 'choose', 'data-pointer': leaf.pointer, ...(isSelected ? { 'aria-current': 'true' } : {}), onclick: () => actions.select(leaf.pointer) },
          h('i', { class: `dot-hue ${found.spans.length ? `hue${number % HUES}` : doubt({ ...found, confidence: null }, leaf.value) === 0 && !mark ? 'absent' : 'unneeded'}`, 'aria-hidden': 'true' }), h('span', { class: 'key' }, name), ' ',
          h('span', { class: `value ${leaf.value === null ? 'null' : typeof leaf.value}` }, text === '' ? h('span', { class: 'muted' }, 'empty') : text)),
        h('span', { class: 'notes' }, notes(leaf, found, mark)),
        h('span', { class: 'decide' },
          h('button', { class: 'accept', 'aria-pressed': String(Boolean(mark)), 'aria-label': `accept ${leaf.pointer || 'the value'}`, title: 'accept (a)', onclick: () => actions.accept(leaf.pointer) }, '✓'),
          h('button', { 'aria-label': `correct ${leaf.pointer || 'the value'}`, title: 'correct (e)', class: 'change', onclick: () => actions.edit(leaf.pointer) }, '✎'))),
      shown.editing === leaf.pointer ? editor(leaf) : null);
  }

  function editor(leaf) {
    const before = typeof leaf.value === 'string' ? leaf.value : JSON.stringify(leaf.value);
    const said = h('span', { class: 'bad', role: 'alert' });
    const choices = typeof leaf.value === 'boolean' ? ['true', 'false'] : null;
    const box = choices
      ? h('select', { 'aria-label': 'The right value' }, choices.map((each) => h('option', { value: each, selected: each === before }, each)))
      : h('textarea', { class: 'right', rows: String(Math.min(8, 1 + Math.floor(before.length / 60))), 'aria-label': 'The right value', value: before, spellcheck: 'false' });
    const save = (event) => {
      if (event) event.preventDefault();
      try { actions.correct(leaf, typed(box.value, leaf.value)); } catch (error) { replace(said, error.message); }
    };
    box.addEventListener('keydown', (event) => {
      if (event.key === 'Enter' && !event.shiftKey) save(event);
      if (event.key === 'Escape') { event.stopPropagation(); event.preventDefault(); actions.edit(null); }
    });
    queueMicrotask(() => { box.focus(); if (box.select) box.select(); });
    return h('form', { class: 'editor', onsubmit: save }, box, h('span', { class: 'row-tools' }, h('button', { class: 'main' }, 'save'), h('button', { type: 'button', onclick: () => actions.edit(null) }, 'cancel'), said));
  }

  function drawTree() {
    const numbers = new Map(shown.leaves.map((leaf, number) => [leaf.pointer, number]));
    function branch(name, value, steps) {
      const pointer = pointerOf(steps);
      if (numbers.has(pointer)) return leafLine(name, shown.leaves[numbers.get(pointer)], numbers.get(pointer));
      return h('li', { class: 'group' }, h('span', { class: 'key' }, name), h('ul', {}, Object.entries(value).map(([key, each]) => branch(Array.isArray(value) ? `[${key}]` : key, each, [...steps, key]))));
    }
    const value = shown.value;
    const isLeaf = numbers.has('');
    replace(tree, h('ul', { 'aria-label': 'Values' }, isLeaf ? leafLine('value', shown.leaves[0], 0) : Object.entries(value).map(([key, each]) => branch(Array.isArray(value) ? `[${key}]` : key, each, [key]))));
  }

  function scroll(pointer) {
    const there = [...source.querySelectorAll('mark')].find((node) => node.dataset.pointer === pointer);
    const line = [...tree.querySelectorAll('.choose')].find((node) => node.dataset.pointer === pointer);
    if (there && source.scrollHeight > source.clientHeight) source.scrollTop = there.offsetTop - source.clientHeight / 3;
    const box = [...picture.querySelectorAll('.box')].find((node) => node.dataset.pointer === pointer);
    if (box) picture.scrollTop = box.offsetParent.offsetTop + box.offsetTop - picture.clientHeight / 3;
    if (line) line.closest('.leaf').scrollIntoView({ block: 'nearest' });
  }

  return {
    source, picture, tabs, tree,
    /** `state` has the row, its value as it is now, marks, the selected pointer and the one being corrected. */
    draw(state) {
      shown = { ...state, leaves: leavesOf(state.value) };
      drawSource();
      drawPages();
      drawTree();
      if (state.selected !== null) scroll(state.selected);
    },
    leaves: () => shown.leaves,
    /** The text that is selected in the source, and where it stands. */
    picked() {
      const selection = getSelection();
      if (!selection.rangeCount || selection.isCollapsed || !source.contains(selection.anchorNode) || !source.contains(selection.focusNode)) return null;
      const range = selection.getRangeAt(0);
      const before = document.createRange();
      before.selectNodeContents(source);
      before.setEnd(range.startContainer, range.startOffset);
      const start = before.toString().length;
      const end = start + range.toString().length;
      return { text: shown.row.source.slice(start, end), start, end };
    },
  };
}
