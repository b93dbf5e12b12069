// Follow a conversation from call to call: where a call stands in it, those before and after, and all of them.
import { get } from './api.js';
import { clock, h, ms, none, replace, stage, table } from './dom.js';

/** Fill a place on a call's page; it stays empty for a call that stands alone. */
export async function showConversation(place, row) {
  const { calls } = await get(`conversations/${encodeURIComponent(row.id)}`);
  const at = calls.findIndex((each) => each.id === row.id);
  if (at < 0) return;
  const link = (call, words, rel) => (call ? h('a.button', { href: `/console/r/${call.id}`, rel }, words) : null);
  const listed = calls.map((call, index) => [[`${index + 1}. `, index === at ? h('b', 'this call') : h('a', { href: `/console/r/${call.id}` }, clock(call.at))], call.model || none, stage(call), ms(call.ms)]);
  replace(place, h('section.card.conversation', { 'aria-label': 'Conversation' },
    h('div.tools', {}, h('b', {}, `Call ${at + 1} of ${calls.length}`), h('span.label', 'of this conversation'), h('span.space'), link(calls[at - 1], '← Previous call', 'prev'), link(calls[at + 1], 'Next call →', 'next')),
    h('details', {}, h('summary', 'All its calls'), table(['call', 'model', 'outcome', 'total'], listed, 'Calls of this conversation', [3]))));
}

/** Where calls stand in their conversations: `later` reads them again when recorded calls have ended. */
export function places(onChange) {
  let known = {};
  let reading = 0;
  const read = async () => {
    reading = 0;
    const before = known;
    try { known = (await get('conversations')).places; } catch { return; } // the list is of use without it
    if (Object.keys(before).length || Object.keys(known).length) onChange();
  };
  const later = (row) => { if (row.words === 'kept') reading ||= setTimeout(read, 1000); };
  return { of: (id) => known[id], read, later, close: () => clearTimeout(reading) };
}
