// Takes the pictures of the console for the docs. Usage: node console_screenshots.mjs LINK OUT [all]; `all` takes both themes and widths, and says what axe finds.
// CARD=FROM.svg:TO.png draws the docs' card as well.
import { readFileSync, statSync } from 'node:fs';
import { launch, need } from '../chromium.mjs';

const [link, out, all] = process.argv.slice(2);
const { KEYED, OPERATOR } = process.env;
const axe = readFileSync(need.resolve('axe-core/axe.min.js'), 'utf-8');
const origin = new URL(link).origin;
let theme = 'light';
const browser = await launch();
const page = await browser.newPage();
page.on('pageerror', (error) => console.error(error.stack));
await page.setViewport({ width: 1280, height: 800 });
await page.goto(link, { waitUntil: 'load' });
await page.waitForSelector('main h1');

const settle = () => page.evaluate(() => new Promise((resolve) => { setTimeout(resolve, 250); }));
const find = async (query) => {
  await page.goto(`${origin}/console/traffic?q=${encodeURIComponent(query)}`, { waitUntil: 'load' });
  await page.waitForSelector('.call');
  return page.$eval('.call', (node) => node.getAttribute('href').replace('/console/', ''));
};
const calls = { call: await find('stage:reasked stream:true'), repaired: await find('stage:repaired'), evidence: await find('schema:order model:openai* stream:false'), schema: 'schemas/order',
  failed: await find('model:cohere*'), refused: await find('model:gemini*'), fallback: await find('model:best'), waited: await find('model:together*'), limited: await find('model:busy*'), tools: await find('model:xai* stage:reasked'), conversation: await find('model:xai*') };
const outcome = () => page.waitForSelector('.outcome');
const openTools = async () => {
  await page.waitForSelector('.conversation');
  await page.evaluate(() => [...document.querySelectorAll('[role=tab]')].find((each) => each.textContent === 'Tools').click());
};
/** Pages that the docs do not show. */
const further = {
  failed: outcome, refused: outcome, fallback: outcome, waited: outcome, limited: outcome, tools: openTools,
  async conversation() {
    await page.waitForSelector('.conversation');
    await page.click('.conversation summary');
  },
  async turns() {
    await page.goto(`${origin}/console/traffic?q=model:xai*`, { waitUntil: 'load' });
    await page.waitForSelector('.place');
  },
};
const shots = {
  async traffic() { await page.waitForSelector('.call'); },
  async overview() { await page.waitForSelector('.chart'); },
  async call() { await page.waitForSelector('.player'); },
  async repaired() { await page.waitForSelector('.diff'); },
  async playground() {
    await page.goto(`${origin}/console/${calls.evidence}`, { waitUntil: 'load' });
    await page.waitForSelector('.tree .span');
    await page.evaluate(() => { [...document.querySelectorAll('.head button')].find((each) => each.textContent === 'Playground').click(); });
    await page.waitForSelector('#run:not([disabled])');
    await page.evaluate(() => { const add = document.querySelector('input[list]'); for (const name of ['anthropic/claude-sonnet']) { add.value = name; add.dispatchEvent(new Event('change')); } });
    await page.click('#run');
    await page.waitForFunction(() => [...document.querySelectorAll('.columns .card')].length > 1 && [...document.querySelectorAll('.columns .card .pill')].every((each) => /✓|✗/.test(each.textContent)), { timeout: 20000 });
    await page.evaluate(() => scrollTo(0, 0));
  },
  async evidence() {
    await page.waitForSelector('.tree .span');
    await page.click('.tree [data-path="$.email"] .span');
    await page.waitForSelector('mark');
    await page.evaluate(() => scrollTo(0, 0));
  },
  async schemas() { await page.waitForSelector('.heat'); },
  async schema() { await page.waitForSelector('.hot'); },
  async providers() { await page.waitForSelector('.card'); },
  async keys() {
    await page.goto(`${KEYED}/console/keys`, { waitUntil: 'load' });
    await page.evaluate((each) => localStorage.setItem('theme', each), theme);
    await page.reload({ waitUntil: 'load' });
    await page.waitForSelector('#key, main table');
    if (await page.$('#key')) {
      await page.type('#key', OPERATOR);
      await page.click('button.main');
      await page.waitForSelector('main table');
    }
  },
  async api() {
    await page.waitForSelector('.op');
    await page.evaluate(() => { const found = [...document.querySelectorAll('.op')].find((each) => each.textContent.includes('/v1/chat/completions')); found.open = true; });
    await page.waitForSelector('.op .main');
    await page.click('.op .main');
    await page.waitForFunction(() => /DONE/.test(document.querySelector('.reply')?.textContent), { timeout: 20000 });
    await page.evaluate(() => scrollTo(0, 0));
  },
  async about() { await page.waitForSelector('table'); },
};
if (all) Object.assign(shots, further);
const only = process.env.PAGES ? process.env.PAGES.split(',') : Object.keys(shots);
for (theme of all ? ['light', 'dark'] : ['light']) {
  await page.evaluate((each) => localStorage.setItem('theme', each), theme);
  for (const width of all ? [1440, 390] : [1280]) {
    await page.setViewport({ width, height: width > 1000 ? 800 : 844 });
    for (const name of only) {
      await page.goto('about:blank');
      await page.goto(`${origin}/console/${calls[name] || name}`, { waitUntil: 'load' });
      await page.waitForSelector('main h1');
      await shots[name]();
      await settle();
      const wide = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
      if (all) {
        await page.evaluate(axe);
        const violations = await page.evaluate(async () => (await window.axe.run(document, { runOnly: ['wcag2a', 'wcag2aa', 'wcag21aa', 'wcag22aa'], resultTypes: ['violations'] })).violations.map((each) => `${each.id}: ${each.nodes[0].html.slice(0, 160)}`));
        for (const each of violations) console.error(`${name} ${theme} ${width}: ${each}`);
      }
      if (wide > 0) console.error(`${name} ${width}: ${wide} px too wide`);
      const path = `${out}/console-${name}${all ? `-${theme}-${width}` : ''}.png`;
      await page.screenshot({ path, fullPage: Boolean(all), optimizeForSpeed: false });
      console.log(path, statSync(path).size);
    }
  }
}
if (!all) {
  await page.evaluate(() => localStorage.setItem('theme', 'dark'));
  await page.goto(`${origin}/console/${calls.call}`, { waitUntil: 'load' });
  await page.waitForSelector('.player');
  await settle();
  await page.screenshot({ path: `${out}/console-call-dark.png` });
}
if (process.env.CARD) {
  // What other sites show beside a link to the docs.
  const [from, to] = process.env.CARD.split(':');
  await page.setViewport({ width: 1200, height: 630 });
  await page.goto(`file://${from}`, { waitUntil: 'load' });
  await page.screenshot({ path: to });
}
await browser.close();
