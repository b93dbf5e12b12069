// Draw series as bars and lines; every chart can be read as a table too.
import { clock, count, h, ms, table } from './dom.js';

const WIDE = 600;
const HIGH = 120;

function frame(label, series, most, unit, marks) {
  const rules = [0, 0.5, 1].map((share) => h('line.grid', { x1: 0, x2: WIDE, y1: HIGH - share * (HIGH - 2), y2: HIGH - share * (HIGH - 2), 'vector-effect': 'non-scaling-stroke' }));
  const times = [0, Math.floor(series.length / 2), series.length - 1].map((index) => h('span', {}, clock(series[index].at).slice(0, 5)));
  return h('div.plot', h('span.most', {}, unit(most)), h('svg.chart', { viewBox: `0 0 ${WIDE} ${HIGH}`, preserveAspectRatio: 'none', role: 'img', 'aria-label': `${label}, at most ${unit(most)}` }, rules, marks), h('div.axis', {}, times));
}

/** Stacked bars, one stack per step. */
export function bars(label, series, names, unit = count) {
  const most = Math.max(1, ...series.map((step) => names.reduce((sum, name) => sum + step[name], 0)));
  const wide = WIDE / series.length;
  return frame(label, series, most, unit, series.flatMap((step, index) => {
    let top = HIGH;
    return names.filter((name) => step[name]).map((name) => {
      const height = ((HIGH - 2) * step[name]) / most;
      top -= height;
      return h('rect', { class: name, x: index * wide + 0.5, y: top, width: Math.max(1, wide - 1.5), height });
    });
  }));
}

/** Lines, one per name; steps without a value are bridged. */
export function lines(label, series, names, unit = ms) {
  const most = Math.max(1, ...series.flatMap((step) => names.map((name) => step[name] || 0)));
  const wide = WIDE / series.length;
  return frame(label, series, most, unit, names.map((name) => {
    const points = series.map((step, index) => [index, step[name]]).filter(([, value]) => value !== null && value !== undefined).map(([index, value]) => `${(index * wide + wide / 2).toFixed(1)} ${(HIGH - ((HIGH - 2) * value) / most).toFixed(1)}`);
    return points.length ? h('path', { class: name, d: points.length === 1 ? `M${points[0]}h3` : `M${points.join('L')}` }) : null;
  }));
}

export function keyOf(names) {
  return h('div.legend.keys-c', {}, names.map(([name, said]) => h('span', h('i', { class: name }), said)));
}

/** The same as a table, folded. */
export function asTable(series, names, label, unit = count) {
  const filled = series.filter((step) => names.some(([name]) => step[name]));
  return h('details', h('summary.label', 'as a table'), table(['time', ...names.map((each) => each[1])], filled.map((step) => [clock(step.at), ...names.map(([name]) => unit(step[name]))]), label));
}
