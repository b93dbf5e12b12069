// Times the console's list in a browser. Usage: node _console_page.mjs LINK ROWS; prints figures.
// Paint and list are the best of five; tasks and heap are of one run, in which calls come through the event stream.
import { launch } from '../tests/chromium.mjs';

const [link, many] = process.argv.slice(2);
const origin = new URL(link).origin;
const browser = await launch();
const page = await browser.newPage();
await page.setViewport({ width: 1280, height: 800 });
await page.goto(link, { waitUntil: 'load' });
await page.waitForSelector('.call');
const say = (name, value, digits, unit, bar, more = '') => console.log(`${name.padEnd(18)} ${value.toFixed(digits).padStart(8)} ${unit}   (bar ${bar})${more}`);

const paints = [];
const drawn = [];
for (let round = 0; round < 5; round += 1) {
  await page.goto('about:blank');
  await page.goto(`${origin}/console/traffic`, { waitUntil: 'load' });
  drawn.push(await page.evaluate(() => new Promise((resolve) => { const look = () => (document.querySelector('.call') ? resolve(performance.now()) : setTimeout(look, 5)); look(); })));
  // A paint is told a moment after it happened, and only of a page that is in front.
  await page.bringToFront();
  paints.push(await page.evaluate(() => new Promise((resolve) => {
    new PerformanceObserver((list) => { const found = list.getEntriesByName('first-contentful-paint')[0]; if (found) resolve(found.startTime); }).observe({ type: 'paint', buffered: true });
  })));
}
say('first paint', Math.min(...paints), 0, 'ms', 500);
say('list drawn', Math.min(...drawn), 0, 'ms', 500, `, of ${Number(many).toLocaleString('en')} rows`);

// Calls arrive, through the server's events: no task of the page may block it for long. On a machine that does other work too
// a task also lasts while it waits for a core, so its processor time is told beside it.
const busy = (milliseconds) => page.evaluate((wanted) => new Promise((resolve) => { setTimeout(() => { const from = performance.now(); while (performance.now() - from < wanted); setTimeout(resolve, 100); }, 0); }), milliseconds);
const traced = async (act) => {
  await page.tracing.start({ categories: ['toplevel', 'devtools.timeline', 'disabled-by-default-devtools.timeline'] });
  await act();
  const { traceEvents } = JSON.parse(Buffer.from(await page.tracing.stop()).toString());
  const main = new Set(traceEvents.filter((each) => each.name === 'thread_name' && each.args.name === 'CrRendererMain').map((each) => `${each.pid} ${each.tid}`));
  const own = traceEvents.filter((each) => each.ph === 'X' && main.has(`${each.pid} ${each.tid}`));
  const longest = (events, time) => events.reduce((most, each) => Math.max(most, (each[time] || 0) / 1000), 0);
  const scripts = own.filter((each) => ['FunctionCall', 'EvaluateScript', 'RunMicrotasks'].includes(each.name));
  const tasks = own.filter((each) => /RunTask$/.test(each.name));
  return { script: longest(scripts, 'tdur'), task: longest(tasks, 'tdur'), wall: longest(tasks, 'dur'), many: tasks.length };
};
const known = await traced(() => busy(80));
if (known.wall < 75 || known.script < 20) throw new Error(`this browser does not tell of long tasks: ${JSON.stringify(known)}`);
const before = await page.evaluate(async () => (await (await fetch('/console/api/v1/me')).json()).kept.rows);
let seconds = 0;
const seen = await traced(async () => {
  const began = Date.now();
  for (let batch = 0; batch < 50; batch += 1) {
    await fetch(`${origin}/test/arrive?n=20`);
    await new Promise((resolve) => { setTimeout(resolve, Math.max(0, began + 100 * (batch + 1) - Date.now())); });
  }
  seconds = (Date.now() - began) / 1000;
  await page.waitForFunction((wanted) => document.querySelector('.head .label').textContent.startsWith(wanted), { timeout: 10000, polling: 100 }, (before + 1000).toLocaleString('en'));
});
say('longest script', seen.script, 1, 'ms', 50, `, ${Math.round(1000 / seconds)} calls/s for ${seconds.toFixed(1)} s`);
say('longest task', seen.task, 1, 'ms', 50, `, with layout and paint; by the clock ${seen.wall.toFixed(0)} ms`);

// A hundred thousand events, as quickly as the page takes them.
await page.evaluate(async () => {
  const { traffic } = await import(new URL('traffic.js', document.querySelector('script[type=module]').src).href);
  const opened = await traffic(document.querySelector('main'), { go() {}, kept: null });
  const text = JSON.stringify((await (await fetch('/console/api/v1/requests?limit=1')).json()).rows[0]);
  for (let number = 0; number < 100000; number += 1) {
    opened.events[number % 2 ? 'end' : 'begin']({ ...JSON.parse(text), id: `call ${number >> 1}`, stage: number % 2 ? 'first' : 'under_way' });
    if (number % 1000 === 999) await new Promise((resolve) => { setTimeout(resolve, 20); });
  }
  await new Promise((resolve) => { setTimeout(resolve, 200); });
});
const session = await page.createCDPSession();
await session.send('HeapProfiler.collectGarbage');
say('heap', (await page.metrics()).JSHeapUsedSize / 1e6, 1, 'MB', 60, ', after 100,000 events');
await browser.close();
