// Times the console's list in a browser. Usage: node _console_page.mjs LINK ROWS; prints figures, best of five.
import { launch } from '../tests/chromium.mjs';

const [link, many] = process.argv.slice(2);
const origin = new URL(link).origin;
const browser = await launch();
const page = await browser.newPage();
await page.setViewport({ width: 1280, height: 800 });
await page.goto(link, { waitUntil: 'load' });
await page.waitForSelector('.call');
const paints = [];
const drawn = [];
for (let round = 0; round < 5; round += 1) {
  await page.goto('about:blank');
  await page.goto(`${origin}/console/traffic`, { waitUntil: 'load' });
  drawn.push(await page.evaluate(() => new Promise((resolve) => { const look = () => (document.querySelector('.call') ? resolve(performance.now()) : setTimeout(look, 5)); look(); })));
  paints.push(await page.evaluate(() => performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? NaN));
}
console.log(`first paint         ${Math.min(...paints).toFixed(0).padStart(8)} ms   (bar 500)`);
console.log(`list drawn          ${Math.min(...drawn).toFixed(0).padStart(8)} ms   (bar 500), of ${Number(many).toLocaleString('en')} rows`);

// Calls arrive: no task of the page may block it for long.
const tasks = await page.evaluate(async () => {
  const { traffic } = await import(new URL('traffic.js', document.querySelector('script[type=module]').src).href);
  const seen = [];
  new PerformanceObserver((list) => { for (const entry of list.getEntries()) seen.push(entry.duration); }).observe({ entryTypes: ['longtask'] });
  const opened = await traffic(document.querySelector('main'), { go() {}, kept: null });
  const row = (await (await fetch('/console/api/v1/requests?limit=1')).json()).rows[0];
  for (let second = 0; second < 3; second += 1) {
    for (let batch = 0; batch < 10; batch += 1) {
      for (let call = 0; call < 20; call += 1) opened.events.end({ ...row, id: `${second}-${batch}-${call}` });
      await new Promise((resolve) => { setTimeout(resolve, 100); });
    }
  }
  opened.close();
  return seen;
});
console.log(`longest task        ${(tasks.length ? Math.max(...tasks) : 0).toFixed(0).padStart(8)} ms   (bar 50), 200 calls/s for 3 s`);
const metrics = await page.metrics();
console.log(`heap                ${(metrics.JSHeapUsedSize / 1e6).toFixed(1).padStart(8)} MB   (bar 60)`);
await browser.close();
