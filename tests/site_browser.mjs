// Looks at pages of the docs site in a real browser. Usage: node site_browser.mjs ORIGIN FOLDER 'page width scheme'…; prints one JSON object: each of these → '' or what is wrong.
import { launch, need } from './chromium.mjs';
import { readFileSync } from 'node:fs';

const axe = readFileSync(need.resolve('axe-core/axe.min.js'), 'utf-8');
const [origin, folder, ...looks] = process.argv.slice(2);
const found = {};

const browser = await launch();

async function look(name, width, scheme) {
  const context = await browser.createBrowserContext();
  const page = await context.newPage();
  const wrong = [];
  page.setDefaultTimeout(120000);
  await page.setViewport({ width, height: 800 });
  await page.emulateMediaFeatures([{ name: 'prefers-color-scheme', value: scheme }, { name: 'prefers-reduced-motion', value: 'reduce' }]);
  // A headless browser has no pointer that hovers; only for one that has does the theme let the keyboard scroll code.
  await page.evaluateOnNewDocument(() => { const real = window.matchMedia.bind(window); window.matchMedia = (query) => real(query === '(hover)' ? 'all' : query); });
  page.on('request', (request) => { if (!request.url().startsWith(origin) && !/^(data|blob):/.test(request.url())) wrong.push(`asks ${request.url()}`); });
  page.on('pageerror', (error) => wrong.push(`script: ${error.message}`));
  page.on('response', (response) => { if (response.status() >= 400) wrong.push(`${response.status()} ${response.url()}`); });
  await page.goto(`${origin}/${name}`, { waitUntil: 'load' });
  await page.waitForFunction((wanted) => document.body.dataset.mdColorScheme === wanted, {}, scheme === 'dark' ? 'slate' : 'default');
  await page.waitForFunction(() => [...document.querySelectorAll('pre > code')].every((code) => code.closest('pre').id), {});  // the theme has looked at them
  const wide = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
  if (wide > 0) wrong.push(`the page is ${wide} px wider than its window`);
  await page.evaluate(axe);
  const report = await page.evaluate(() => axe.run(document, { runOnly: ['wcag2a', 'wcag2aa', 'wcag21aa', 'wcag22aa'] }));
  for (const each of report.violations) wrong.push(`${each.id}: ${each.nodes.slice(0, 3).map((node) => `${node.target} ${node.any[0]?.message ?? ''}`).join(' | ')}`);
  await context.close();
  return wrong.join('\n');
}

for (const each of looks) {
  const [name, width, scheme] = each.split(' ');
  found[each] = await look(name, Number(width), scheme).catch((error) => error.message);
}

// The search of a site that was opened from disk, with no server: a setting and an error code are entries of their own.
async function search(words, address) {
  const page = await browser.newPage();
  page.setDefaultTimeout(120000);
  await page.setViewport({ width: 1280, height: 800 });
  await page.goto(`file://${folder}/index.html`, { waitUntil: 'load' });
  await page.click('.md-search__button');
  await page.waitForFunction(() => [...document.querySelectorAll('*')].some((node) => node.shadowRoot?.querySelector('input')), {});
  await page.keyboard.sendCharacter(words);
  const has = (wanted) => [...document.querySelectorAll('*')].some((node) => [...node.shadowRoot?.querySelectorAll('a') ?? []].some((link) => link.href.replace(/\?[^#]*/, '').endsWith(wanted)));
  await page.waitForFunction(has, {}, address);
  return '';
}
for (const [words, address] of [['server.trace_bytes', 'reference.html#server.trace_bytes'], ['too_many_wrong_keys', 'troubleshooting.html#too_many_wrong_keys']]) {
  found[`search ${words}`] = await search(words, address).catch((error) => `no result leads to ${address}: ${error.message}`);
}
console.log(JSON.stringify(found));
await browser.close();
