// One call: its answer being poured, its attempts side by side, what was repaired, patched and lost, and how to repeat it.
import { get, del, listen, post, put } from './api.js';
import { copiesOf } from './code.js';
import { showConversation } from './conversation.js';
import { clock, copy, count, download, h, icon, money, ms, none, replace, stage } from './dom.js';
import { outcomeCard } from './outcome.js';
import { attemptCalls, callsView, panels } from './panels.js';
import { parsePartial } from './partial.js';
import { countsRibbon, grow, legend, player, ribbon, states, unitsBefore } from './pour.js';
import { callsOf, evidenceOf, finalText, marksOf, parsed, schemaOf } from './trace.js';
import { tree } from './tree.js';

/** A button that records the prompts and answers of later calls: until it is stopped, or for an hour where others call. */
function recordFromNowOn() {
  const record = async () => {
    const { traces } = await get('me');
    await post('tracing', traces.switch ? { recording: true } : { minutes: 60 });
    replace(button, traces.switch ? 'Recording. Make the call again.' : 'Recording for an hour. Make the call again.');
    button.disabled = true;
  };
  const button = h('button', { onclick: record }, 'Record from now on');
  return button;
}

export async function request(main, state, id) {
  let row;
  try {
    row = state.imported?.id === id ? state.imported : await get(`requests/${encodeURIComponent(id)}`);
  } catch (error) {
    if (error.status !== 404) throw error;
    replace(main, h('div.card.empty', h('h1', 'This call is not here'), h('p', {}, error.message), h('a.button', { href: '/console/traffic' }, 'To the traffic')));
    return {};
  }
  return row.stage === 'under_way' ? live(main, state, row) : over(main, state, row);
}

function header(state, row, ...tools) {
  const model = row.upstream_model && !row.model.endsWith(row.upstream_model) ? `${row.model} → ${row.provider}/${row.upstream_model}` : row.model || none;
  return [h('div.head', h('a.button', { href: '/console/traffic', 'aria-label': 'Back to the traffic' }, icon('back')), h('h1', {}, model), stage(row), h('span.space'), tools),
    h('div.meta', [row.status || null, row.outcome === 'ok' || row.outcome === 'under_way' ? null : row.outcome, row.schema ? `schema ${row.schema}` : null, row.api, row.strategy, row.stream ? 'streamed' : 'whole', row.cached ? 'cached' : null, row.caller, clock(row.at)].filter(Boolean).map((each) => h('span.chip', {}, each)), h('span.chip.mono', { title: 'id' }, row.id.slice(0, 12)))];
}

const figure = (name, value) => h('div', h('dt', {}, name), h('dd', {}, value));

/** A call under way: tree and ribbon fill while it runs; where words are not kept, from counts alone. */
function live(main, state, row) {
  const trace = row.trace;
  const schema = schemaOf(parsed(trace?.request.text));
  const list = states(trace ? trace.pour : []);
  const treeBox = h('div');
  const pourBox = h('div');
  const note = h('p.label', { 'aria-live': 'polite' }, 'waiting for the first piece …');
  let before;
  let seen = list.length;
  const show = (totals) => {
    const last = list[list.length - 1];
    if (schema) {
      const value = last ? parsePartial(last.total) : undefined;
      replace(treeBox, tree(schema, value, { before: before ?? new Map() }));
      before = value;
    } else replace(treeBox, h('p.muted', {}, row.schema ? `The shape “${row.schema}” is not shown: words of this call are not kept.` : 'This call has no schema.'));
    if (last) replace(pourBox, h('h3', `Attempt ${last.attempt}`), ribbon(last, null, true), legend());
    else if (totals) replace(pourBox, h('h3', `Attempt ${totals.attempt}`), countsRibbon(totals), legend());
    if (totals) replace(note, `${ms(totals.ms)} · attempt ${totals.attempt} · ${count(totals.sent)} characters sent`);
  };
  replace(main, header(state, row), h('div.split', h('section.card', { 'aria-label': 'Answer by schema' }, h('h2', 'Answer'), treeBox), h('section.card', { 'aria-label': 'The pour' }, h('h2', 'The pour'), note, pourBox)));
  show(null);
  const ended = async () => { close(); if (location.pathname === `/console/r/${row.id}`) await state.refresh(); };
  const close = listen({
    pour: (grown) => {
      if (grown.id !== row.id) return;
      // The stream begins with all pieces so far; those that came with the page are not taken twice.
      for (const piece of grown.pieces || []) { if (seen > 0) seen -= 1; else grow(list, piece); }
      show(grown);
    },
    end: (each) => { if (each.id === row.id) ended(); },
  }, (connected) => {
    if (!connected) return;
    seen = list.length; // all pieces so far come again
    get(`requests/${row.id}`).then((now) => { if (now.stage !== 'under_way') ended(); }, () => {});
  }, row.id);
  return { close };
}

function over(main, state, row) {
  const trace = row.trace;
  const body = parsed(trace?.request.text);
  const schema = schemaOf(body);
  const report = trace?.report;
  const attempts = (report?.attempts) || (row.detail?.attempts) || [];
  const answer = finalText(trace, row);
  const calls = callsOf(trace);
  const marks = marksOf(attempts);
  const evidence = evidenceOf(report);
  const list = trace?.pour.length ? states(trace.pour) : [];
  const ends = new Map(list.map((each) => [each.attempt, each]));

  const treeBox = h('div');
  let before;
  const fillTree = (text, whole) => {
    if (!schema && calls.length) { replace(treeBox, callsView(calls, trace.calls?.at(-1))); return; }
    if (!schema && trace?.calls?.at(-1)?.length) { replace(treeBox, attemptCalls(trace.calls.at(-1))); return; }
    if (!schema) { replace(treeBox, h('p.muted', {}, row.schema ? `The shape “${row.schema}” was not recorded.` : 'This call has no schema.'), answer ? h('pre.pour', { tabindex: '0', 'aria-label': 'The answer' }, answer) : null); return; }
    const value = text ? parsePartial(text) : undefined;
    replace(treeBox, tree(schema, value, { marks: whole ? marks : new Map(), before: whole ? undefined : before, evidence: whole ? evidence : new Map(), onEvidence: view.lightUp }));
    before = value ?? new Map();
  };

  const total = Math.max(attempts.length, list.length ? list[list.length - 1].attempt : 0);
  const boxes = Array.from({ length: total }, (_, index) => h('div', { 'data-attempt': index + 1 }));
  const drawn = new Array(total);
  const columns = boxes.map((box, index) => column(attempts[index] || {}, index, h('div', {}, box, attemptCalls(trace?.calls?.[index])), total, Boolean(trace?.calls?.[index]?.length), attempts[index - 1]));
  // Arguments of calls leave by themselves, not as text: those of a valid attempt have left when it ends.
  const end = (index) => {
    const last = ends.get(index + 1);
    const isCall = last && !last.sent && attempts[index]?.outcome === 'ok' && trace.calls?.[index]?.length;
    return isCall ? { ...last, sent: last.received } : last;
  };
  const draw = (index, current) => {
    const isEnd = !current || current.attempt > index + 1 || current === ends.get(index + 1);
    const shown = isEnd ? end(index) : current.attempt === index + 1 ? current : null;
    if (drawn[index] === shown && shown !== undefined) return;
    drawn[index] = shown;
    columns[index].classList.toggle('later', shown === null);
    const attempt = attempts[index] || {};
    const fault = attempt.stream?.fault;
    if (shown) replace(boxes[index], ribbon(shown, isEnd && fault ? unitsBefore(shown.received, fault.at) : null, !isEnd));
    else if (shown === null) replace(boxes[index], h('p.muted', 'not yet'));
    else replace(boxes[index], attempt.stream ? countsRibbon(attempt.stream) : null, attempt.outcome === 'refusal' ? h('p.muted', 'Its refusal is above.') : null, trace?.texts[index] ? h('pre.pour', { tabindex: '0', 'aria-label': `What the model wrote in attempt ${index + 1}` }, trace.texts[index].slice(0, 65536)) : null);
  };
  const view = panels({ row, trace, body, schema, attempts, answer });
  let play = null;
  if (list.length) {
    play = player(list, (current, position) => {
      const isLast = position === list.length - 1;
      fillTree(isLast && answer ? answer : current.total, isLast);
      for (let index = 0; index < total; index += 1) draw(index, current);
    });
  } else {
    fillTree(answer, true);
    for (let index = 0; index < total; index += 1) draw(index, null);
  }

  const copies = copiesOf(row, body, schema, trace);
  const copyMenu = copies.length ? h('details.menu', h('summary.button', {}, icon('copy'), 'Copy as'), h('menu', {}, copies.map(([name, make]) => h('li', h('button.copy', { 'data-kind': name, onclick: (event) => copy(make(), event.currentTarget) }, name))))) : null;
  const isPinned = { now: Boolean(row.pinned) };
  const pin = h('button', { 'aria-pressed': String(isPinned.now), onclick: async () => {
    const answered = await (isPinned.now ? del(`requests/${row.id}/pin`) : put(`requests/${row.id}/pin`));
    isPinned.now = answered.pinned;
    pin.setAttribute('aria-pressed', String(isPinned.now));
    replace(pin, icon('pin'), isPinned.now ? 'Unpin' : 'Pin');
  } }, icon('pin'), isPinned.now ? 'Unpin' : 'Pin');
  const save = () => download('call.slipform.json', JSON.stringify({ slipform: 1, call: row }, null, 1));
  const file = state.imported === row;
  const nothing = total === 0 ? h('p.muted', {}, row.attempts ? '✓ One attempt, valid as it came.' : row.outcome === 'ok' ? 'Nothing was enforced: the call went through as it was.' : `The call ended before a model answered: ${row.outcome}.`) : null;
  const conversation = h('div');
  if (!file) showConversation(conversation, row).catch(() => {}); // the page is of use without it
  replace(main, header(state, row, copyMenu, body ? h('button', { onclick: () => { state.draft = view.draft(); state.go('/console/playground'); } }, icon('playground'), 'Playground') : null, file ? h('span.pill.note-c', 'from a file') : pin, h('button', { onclick: save }, icon('save'), 'Export')),
    h('dl.figures.small', {}, figure('total', ms(row.ms)), figure('first byte', ms(row.first_ms)), figure('overhead', ms(row.overhead_ms)), figure('tokens in / out', row.input === null && row.output === null ? none : `${count(row.input)} / ${count(row.output)}`), figure('cost', money(row.cost)), figure('attempts', row.attempts || none), figure('fallbacks', count(row.fallbacks))),
    row.absent ? h('p.note', {}, row.absent, ' ', row.words === 'off' ? recordFromNowOn() : null) : null,
    conversation,
    outcomeCard(row, trace),
    play ? play.node : null,
    h('div', { class: evidence.size ? 'split even' : 'split' }, h('section.card', { 'aria-label': 'Answer by schema' }, h('h2', 'Answer'), treeBox), h('section', { 'aria-label': 'The pour' }, h('div.columns', {}, columns), nothing ? h('div.card', {}, nothing) : null, list.length || attempts.some((each) => each.stream) ? legend() : null)),
    view.node);
  view.choose(view.first);
  if (play && state.replay === row.id) { state.replay = null; play.toggle(); }
  return play ? { keys: { ' ': play.toggle, ArrowLeft: () => play.by(-1), ArrowRight: () => play.by(1), c: () => openCopies(copyMenu) }, close: play.stop } : { keys: { c: () => openCopies(copyMenu) } };
}

function openCopies(menu) {
  if (!menu) return;
  menu.open = true;
  menu.querySelector('button').focus();
}

function column(attempt, index, box, total, hasCalls, before) {
  const repeats = before?.asked === attempt.asked && Boolean(before?.error); // what broke off is sent again as it was
  const fault = attempt.stream?.fault;
  const isGood = attempt.outcome === 'ok';
  return h('section.card.attempt', { 'aria-label': `Attempt ${index + 1}` },
    h('div.who', h('h3', {}, total > 1 ? `Attempt ${index + 1}` : 'The model wrote'), attempt.outcome ? h('span', { class: `pill ${isGood ? 'good' : 'bad'}` }, isGood ? '✓ valid' : `✗ ${attempt.outcome.replaceAll('_', ' ')}`) : null, fault ? h('span.pill.bad', { title: fault.message || '' }, `stopped at byte ${fault.byte}`) : null,
      h('span.label', [attempt.model, attempt.seconds !== undefined && attempt.seconds !== null ? ms(attempt.seconds * 1000) : null, attempt.cost ? money(attempt.cost) : null].filter(Boolean).join(' · '))),
    attempt.error ? h('blockquote', {}, attempt.error) : null,
    attempt.asked && index > 0 && !repeats ? h('div.said', { tabindex: '0', role: 'region', 'aria-label': `What attempt ${index + 1} was asked` }, h('b', 'retry prompt'), h('pre', {}, attempt.asked)) : null, box,
    (attempt.violations || []).length && !hasCalls ? h('ul.bad', {}, attempt.violations.slice(0, 20).map((each) => h('li', {}, each.message ? `${each.path} ${each.message}` : `${each.keyword} at ${each.schema_path} ×${each.count}`))) : null);
}
