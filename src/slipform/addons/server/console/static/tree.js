// The schema as a tree that fills in: every field with its type, and the value once there is one.
import { h, percent, width } from './dom.js';

const DEEPEST = 40;
const MOST = 400;
const LONGEST = 300;

function resolve(schema, root, hops = 0) {
  if (!schema || typeof schema !== 'object' || hops > 20) return {};
  const reference = schema.$ref;
  if (typeof reference !== 'string' || !reference.startsWith('#')) return schema;
  let node = root;
  for (const step of reference.slice(1).split('/').slice(1)) {
    const name = decodeURIComponent(step).replaceAll('~1', '/').replaceAll('~0', '~');
    node = node && Object.hasOwn(node, name) ? node[name] : undefined;
  }
  return { pointer: reference.slice(1), ...resolve(node, root, hops + 1), ...Object.fromEntries(Object.entries(schema).filter(([key]) => key !== '$ref')), recursive: true };
}

function branch(schema, root, value) {
  const options = schema.anyOf || schema.oneOf;
  if (!Array.isArray(options)) return schema;
  const resolved = options.map((each) => resolve(each, root));
  const fits = (each) => (value instanceof Map ? each.type === 'object' || each.properties : Array.isArray(value) ? each.type === 'array' : each.type !== 'object' && each.type !== 'array');
  return { ...resolved.find((each) => each.type !== 'null' && (value === undefined || fits(each))) || resolved[0] || {}, options: resolved };
}

function typeOf(schema, depth = 0) {
  if (schema.options && depth < 3) return schema.options.map((each) => typeOf(each, depth + 1)).join(' | ');
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  if (Array.isArray(schema.enum)) return schema.enum.slice(0, 6).map((each) => JSON.stringify(each)).join(' | ') + (schema.enum.length > 6 ? ' …' : '');
  let type = Array.isArray(schema.type) ? schema.type.join(' | ') : schema.type || (schema.properties ? 'object' : 'any');
  const low = schema.minimum ?? schema.exclusiveMinimum ?? schema.minItems ?? schema.minLength;
  const high = schema.maximum ?? schema.exclusiveMaximum ?? schema.maxItems ?? schema.maxLength;
  if (low !== undefined || high !== undefined) type += ` ${low ?? ''}..${high ?? ''}`;
  if (schema.format) type += ` · ${schema.format}`;
  return type;
}

/** The mark of a value without a place; none for what need not be in the source. */
function absence(found, value) {
  if (found.listed || value === null || (value === '' && !found.missing) || typeof value === 'boolean') return null;
  return h('span.none', {}, found.missing ? 'missing' : 'not in the source');
}

/** Its score and its place. */
function proof(found, name, value, onEvidence) {
  const { spans = [], confidence, votes, samples, reason } = found;
  const sure = typeof confidence === 'number' ? confidence.toFixed(2) : '';
  const from = votes === undefined || votes === null ? found.signal || '' : `${votes} of ${samples} answers agree`;
  return [sure ? h('span.trust', { role: 'img', title: `${from}; a score, not a probability`, 'aria-label': `score ${sure}` }, width(h('i'), confidence), sure) : reason ? h('span.type', { title: reason }, 'no score') : null,
    spans.length ? h('button.span', { 'aria-label': `Where ${name} is: ${spans[0].how}`, onclick: () => onEvidence && onEvidence(found) }, spans[0].how, spans.length > 1 ? ` ×${spans.length}` : '') : absence(found, value)];
}

const SIGNS = { differs: ['≠', 'differs'], violated: ['✗', 'violated'], patched: ['✎', 'patched'] };

/** `marks` says by JSON path what was done to a field; `evidence` where its value comes from, and `onEvidence` shows it. */
export function tree(schema, value, { marks = new Map(), before = undefined, evidence = new Map(), onEvidence = null, heat = null } = {}) {
  const root = schema && typeof schema === 'object' ? schema : {};
  let budget = MOST;
  function line(name, node, given, was, path, depth, place) {
    if (budget-- <= 0) return budget === -1 ? h('li', { role: 'treeitem', class: 'muted' }, h('span.line', '… more than is shown here')) : null;
    const resolved = branch(resolve(node, root), root, given);
    const [sign, meaning] = SIGNS[marks.get(path)] || (given === undefined ? ['', ''] : ['✓', 'filled']);
    const pointer = resolved.pointer ?? place;
    const nested = depth < DEEPEST ? children(resolved, given, was, path, depth, pointer) : [];
    const hot = heat && heat(pointer);
    const shown = nested.length || given instanceof Map || Array.isArray(given) ? null : given === undefined ? '' : JSON.stringify(given) ?? '';
    const found = evidence.get(path);
    return h('li', { role: 'treeitem', 'aria-level': depth, 'data-path': path, ...(nested.length ? { 'aria-expanded': 'true' } : {}), class: `${given !== undefined ? 'filled' : ''}${given !== undefined && was === undefined && before !== undefined ? ' fresh' : ''}` },
      h('span.line', h('span.key', {}, name), h('span.type', {}, typeOf(resolved)),
        shown ? h('span.value', {}, shown.length > LONGEST ? `${shown.slice(0, LONGEST)}…` : shown) : null,
        found ? proof(found, name, given, onEvidence) : null, hot ? h('span.hot', { title: `${hot.said} calls. ${hot.why}` }, h('span.bar', { role: 'img', 'aria-label': 'how often it was wrong' }, width(h('i'), hot.share)), percent(hot.share)) : null,
        sign ? h('span', { class: `mark ${meaning}`, title: meaning, role: 'img', 'aria-label': meaning }, sign) : null),
      heat && resolved.description ? h('p.label', {}, String(resolved.description).slice(0, LONGEST)) : null, nested.length ? h('ul', { role: 'group' }, nested) : null);
  }
  function children(node, given, was, path, depth, place) {
    const found = [];
    const old = (name) => (was instanceof Map ? was.get(name) : Array.isArray(was) ? was[name] : undefined);
    if (node.properties || given instanceof Map) {
      const known = Object.keys(node.properties || {});
      // What refers to itself is opened as far as there are values.
      if (given instanceof Map || !node.recursive || depth < 3) for (const name of known) found.push(line(name, node.properties[name], given instanceof Map ? given.get(name) : undefined, old(name), `${path}.${name}`, depth + 1, `${place}/properties/${name.replaceAll('~', '~0').replaceAll('/', '~1')}`));
      if (given instanceof Map) {
        const own = new Set(known);
        for (const [name, each] of given) {
          if (budget <= -1) break;
          if (!own.has(name)) found.push(line(name, typeof node.additionalProperties === 'object' ? node.additionalProperties : {}, each, old(name), `${path}.${name}`, depth + 1));
        }
      }
    } else if (Array.isArray(given)) {
      for (let index = 0; index < given.length && budget > -1; index += 1) found.push(line(`[${index}]`, (node.prefixItems || [])[index] || node.items || {}, given[index], old(index), `${path}[${index}]`, depth + 1));
    } else if (node.type === 'array' && node.items && depth < 3) {
      found.push(line('[ ]', node.items, undefined, undefined, `${path}[]`, depth + 1, `${place}/items`));
    }
    return found;
  }
  return h('div', { class: heat ? 'tree shape' : 'tree' }, h('ul', { role: 'tree', 'aria-label': heat ? 'Fields of the schema' : 'Answer by schema', tabindex: '0' }, line(root.title || 'answer', root, value, before, '$', 1, '')));
}
