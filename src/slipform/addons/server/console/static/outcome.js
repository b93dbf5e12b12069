// Say in a few lines how a call ended and why: the vendor's words, the models that failed, the waits, what to do next.
import { h, table } from './dom.js';
import { parsed } from './trace.js';

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
  const body = parsed(trace?.response.text);
  const error = body?.error;
  if (!error) return null;
  if (typeof error === 'string') return { message: error, code: body.code };
  const details = (Array.isArray(error.details) ? error.details[0]?.metadata : error.details) || {};
  return { message: error.message, code: details.error_code || error.code, details };
}

/** The words with which the model declined, in any of the APIs. */
export function refusalOf(trace) {
  const body = parsed(trace?.response.text);
  if (!body) return null;
  const parts = (body.output || []).flatMap((item) => item.content || []);
  return body.choices?.[0]?.message?.refusal || body.stop_details?.explanation || parts.find((each) => each.refusal)?.refusal || body.candidates?.[0]?.finishMessage || null;
}

/** A card that says how a call ended; null for one whose first answer was used. */
export function outcomeCard(row, trace) {
  const report = trace?.report;
  const error = row.outcome === 'ok' ? null : errorOf(trace);
  const refusal = refusalOf(trace);
  const failed = report?.fallback_errors || row.detail?.fallbacks || [];
  const waits = (report?.notes || []).filter((each) => each.code === 'vendor_retried');
  const waited = waits.length || (row.detail?.notes || []).filter((each) => each === 'vendor_retried').length;
  const code = row.outcome === 'ok' ? null : row.outcome;
  const lines = [];
  if (code && !refusal) lines.push(h('p', {}, h('b', {}, `✗ ${row.status ? `${row.status} ` : ''}${code.replaceAll('_', ' ')}`)), error?.message ? h('blockquote', {}, error.message) : h('p.muted', {}, 'The words of the error were not recorded.'));
  if (!row.attempts && error?.details?.attempts > 1) lines.push(h('p', {}, `The vendor was called ${error.details.attempts} times${error.details.waited_seconds ? `; slipform waited ${error.details.waited_seconds} s in between` : ''}.`));
  if (refusal) lines.push(h('p', {}, h('b', {}, 'The model declined:')), h('blockquote', {}, refusal));
  if (failed.length) lines.push(h('p', {}, h('b', {}, row.outcome === 'ok' ? `${row.upstream_model || row.model} answered after ${failed.length === 1 ? 'another model' : `${failed.length} other models`} failed:` : 'Models that failed before:')), table(['model', 'why'], failed.map((each) => [each.model, `${each.code}${each.message ? `: ${each.message}` : ''}`]), 'Models that failed'));
  if (waited) lines.push(h('p', {}, h('b', {}, `The vendor was called again ${waited === 1 ? 'once' : `${waited} times`} before it answered:`)), waits.length ? h('ul', {}, waits.map((each) => h('li', {}, each.message))) : null);
  const advice = ADVICE[refusal ? 'refusal' : error?.code] || ADVICE[code];
  if (lines.length && advice) lines.push(h('p', {}, h('b', {}, 'What to do: '), advice));
  return lines.length ? h('section.card.outcome', { 'aria-label': 'What happened' }, lines) : null;
}
