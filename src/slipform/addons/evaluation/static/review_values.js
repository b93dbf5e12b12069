// Values and their places: read JSON with all digits, find the leaves, change one without touching the original.

/** JSON with the digits of large integers kept, where the browser can. */
export function parseJson(text) {
  return JSON.parse(text, (key, value, context) => {
    const digits = context && context.source;
    const isCut = typeof value === 'number' && digits && /^-?\d+$/.test(digits) && String(value) !== digits;
    return isCut && JSON.rawJSON ? JSON.rawJSON(digits) : value;
  });
}

export const isContainer = (value) => typeof value === 'object' && value !== null && !(JSON.isRawJSON && JSON.isRawJSON(value));
export const isEmpty = (value) => isContainer(value) && Object.keys(value).length === 0;
export const pointerOf = (steps) => steps.map((step) => `/${String(step).replaceAll('~', '~0').replaceAll('/', '~1')}`).join('');

/** Every scalar and every empty container with its steps, in order. */
export function leavesOf(value, steps = []) {
  if (!isContainer(value) || isEmpty(value)) return [{ steps, pointer: pointerOf(steps), value }];
  return Object.entries(value).flatMap(([key, each]) => leavesOf(each, [...steps, key]));
}

/** A copy of `root` with `value` at a place. Keys are data: `__proto__` is one like any other. */
export function withValue(root, steps, value) {
  if (!steps.length) return value;
  const copy = Array.isArray(root) ? [...root] : { ...root };
  Object.defineProperty(copy, steps[0], { value: withValue(root[steps[0]], steps.slice(1), value), enumerable: true, writable: true, configurable: true });
  return copy;
}

/** A copy of `root` without an item of a list; a field of an object becomes null. */
export function withoutValue(root, steps) {
  const parent = steps.slice(0, -1).reduce((node, step) => node[step], root);
  if (!steps.length || !Array.isArray(parent)) return withValue(root, steps, null);
  return withValue(root, steps.slice(0, -1), parent.filter((_, index) => String(index) !== steps[steps.length - 1]));
}

/** What somebody typed for a value: text stays text; anything else has to be JSON. */
export function typed(text, before) {
  if (typeof before === 'string') return text;
  try {
    return parseJson(text);
  } catch {
    if (before === null) return text;
    throw new Error(`This is no ${isContainer(before) ? 'JSON' : typeof before}`);
  }
}

/** Places in code points, as Python counts them, in the units of JavaScript's strings. */
export function unitsOf(text, points) {
  if (!/[\ud800-\udbff]/.test(text)) return (point) => point;
  const wanted = [...new Set(points)].sort((a, b) => a - b);
  const units = new Map();
  let at = 0;
  let unit = 0;
  for (const point of wanted) {
    for (; at < point && unit < text.length; at += 1) unit += text.codePointAt(unit) > 0xffff ? 2 : 1;
    units.set(point, unit);
  }
  return (point) => units.get(point);
}
