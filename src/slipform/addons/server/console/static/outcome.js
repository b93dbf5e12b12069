// Say in a few lines how a call ended and why: the vendor's words, the models that failed, the waits, what to do next.
import { h, table } from './dom.js';
import { eventsOf } from './trace.js';

const ADVICE = {
  authentication_error: 'Check the key of this provider: `slipform doctor` says which one is used.',
  model_not_found: 'Check the name of the model: `slipform models` lists those that are known.',
  rate_limited: 'Wait, lower the rate, or name a second model to fall back to.',
  upstream_error: 'Call again, or name a second model to fall back to.',
  upstream_timeout: 'The vendor took too long. Raise the limit, or name a second model to fall back to.',
  upstream_rejected_request: 'The vendor does not take the request as it is. Its words say what is wrong.',
  schema_violation: 'See which fields were wrong below. Allow more attempts, relax the schema, or use a stronger model.',
  empty_answer: 'The model wrote nothing. Call again, or use another model.',
  not_json: 'The model wrote no JSON. Allow more attempts, or use a stronger model.',
  refusal: 'Rephrase the prompt, or use another model.',
  truncated: 'The answer was cut off. Raise the limit of output tokens.',
};

/** The words of an error in any of the APIs. */
export function errorOf(trace) {
  const body = eventsOf(trace).find((each) => each.error || each.response?.error || each.type === 'error');
  const error = body?.error || body?.response?.error || body;
  if (!error) return null;
  if (typeof error === 'string') return { message: error, code: body.code };
  const details = (Array.isArray(error.details) ? error.details[0]?.metadata : error.details) || {};
  return { message: error.message, code: details.error_code || error.code, details };
}

/** The words with which the model declined, in any of the APIs. */
export function refusalOf(trace) {
  const words = eventsOf(trace).map((body) => {
    const parts = (body.output || []).flatMap((item) => item.content || []);
    const choice = body.choices?.[0];
    if (body.type === 'response.refusal.delta') return body.delta;
    return choice?.message?.refusal || choice?.delta?.refusal || (body.stop_details || body.delta?.stop_details)?.explanation || parts.find((each) => each.refusal)?.refusal || body.candidates?.[0]?.finishMessage || '';
  });
  return words.join('') || null;
}

const BY_STATUS = { 401: 'authentication_error', 403: 'authentication_error', 404: 'model_not_found', 429: 'rate_limited' };

/** What to do about an error: its code says, or, of a call that passed through, its status. */
function adviceFor(code, status) {
  if (code !== 'upstream_error' || status >= 500) return ADVICE[code];
  return ADVICE[BY_STATUS[status] || 'upstream_rejected_request'];
}

/** A heading, and a line for each try of a vendor that slipform waited before. */
const tries = (words, messages) => [h('p', {}, h('b', {}, words)), messages?.length ? h('ul', {}, messages.map((each) => h('li', {}, each))) : null];

/** A card that says how a call ended; null for one whose first answer was used. */
export function outcomeCard(row, trace) {
  const report = trace?.report;
  const error = row.outcome === 'ok' ? null : errorOf(trace);
  const refusal = refusalOf(trace);
  const failed = report?.fallback_errors || row.detail?.fallbacks || [];
  const waits = trace?.waits?.length ? trace.waits : (report?.notes || []).filter((each) => each.code === 'vendor_retried').map((each) => each.message);
  const waited = waits.length || (row.detail?.notes || []).filter((each) => each === 'vendor_retried').length;
  const code = row.outcome === 'ok' ? null : row.outcome;
  const lines = [];
  if (code && !refusal) lines.push(h('p', {}, h('b', {}, `✗ ${row.status >= 400 ? `${row.status} ` : ''}${code.replaceAll('_', ' ')}`)), error?.message ? h('blockquote', {}, error.message) : row.status >= 400 ? h('p.muted', {}, 'The words of the error were not recorded.') : null);
  if (code && row.detail?.retry_after) lines.push(h('p', {}, `The next call may be made after ${Math.ceil(row.detail.retry_after)} s.`));
  if (!row.attempts && error?.details?.attempts > 1) lines.push(tries(`The vendor was called ${error.details.attempts} times${error.details.waited_seconds ? `; slipform waited ${error.details.waited_seconds} s in between` : ''}:`, error.details.retries));
  if (refusal) lines.push(h('p', {}, h('b', {}, 'The model declined:')), h('blockquote', {}, refusal));
  if (failed.length) lines.push(h('p', {}, h('b', {}, row.outcome === 'ok' ? `${[row.provider, row.upstream_model].filter(Boolean).join('/') || row.model} answered after ${failed.length === 1 ? 'another model' : `${failed.length} other models`} failed:` : 'Models that failed before:')), table(['model', 'why'], failed.map((each) => [each.model, `${each.code}${each.message ? `: ${each.message}` : ''}`]), 'Models that failed'));
  if (waited) lines.push(tries(`The vendor was called again ${waited === 1 ? 'once' : `${waited} times`} before it answered:`, waits));
  const advice = refusal ? ADVICE.refusal : ADVICE[error?.code] || adviceFor(code, row.status);
  if (lines.length && advice) lines.push(h('p', {}, h('b', {}, 'What to do: '), advice.split('`').map((each, index) => (index % 2 ? h('code', {}, each) : each))));
  return lines.length ? h('section.card.outcome', { 'aria-label': 'What happened' }, lines) : null;
}
