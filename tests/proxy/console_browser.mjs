// Drives the console in a real browser. Usage: node console_browser.mjs LINK OUT [names…]; prints one JSON object: a name → '' or what was wrong.
import { createRequire } from 'node:module';
import { execFileSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import assert from 'node:assert/strict';

const need = createRequire(`${process.env.SLIPFORM_NODE}/`);
const chromium = (await import(need.resolve('@sparticuz/chromium'))).default;
const puppeteer = (await import(need.resolve('puppeteer-core'))).default;
const axe = readFileSync(need.resolve('axe-core/axe.min.js'), 'utf-8');
const [link, out] = process.argv.slice(2);
const origin = new URL(link).origin;

const browser = await puppeteer.launch({
  args: chromium.args.filter((each) => !['--disable-web-security', '--single-process', '--no-zygote'].includes(each)).concat('--no-sandbox', '--no-zygote'),
  executablePath: await chromium.executablePath(), headless: 'shell',
});
const context = browser.defaultBrowserContext();
const strangers = [];
const complaints = [];

async function open(path = 'traffic') {
  const page = await context.newPage();
  await page.setViewport({ width: 1280, height: 800 });
  page.on('request', (request) => { if (!request.url().startsWith(origin) && !/^(data|blob):/.test(request.url())) strangers.push(request.url()); });
  page.on('pageerror', (error) => complaints.push(error.message));
  page.on('console', (message) => { if (message.type() === 'error' && !/status of 4\d\d/.test(message.text())) complaints.push(message.text()); });
  await page.goto(path.startsWith('http') ? path : `${origin}/console/${path}`, { waitUntil: 'load' });
  return page;
}

const text = (page, selector) => page.$eval(selector, (node) => node.textContent);
const until = (page, test, ...values) => page.waitForFunction(test, { timeout: 15000 }, ...values);
const SCHEMA = { type: 'object', properties: { name: { type: 'string' }, age: { type: 'integer', minimum: 0, maximum: 150 } }, required: ['name', 'age'], additionalProperties: false };
async function ask(model = 'fake/good', words = 'Ada is 36', more = {}) {
  const response = await fetch(`${origin}/v1/chat/completions`, { method: 'POST', headers: { 'content-type': 'application/json' }, body: JSON.stringify({ model, messages: [{ role: 'user', content: words }], response_format: { type: 'json_schema', json_schema: { name: 'person', schema: SCHEMA } }, ...more }) });
  await response.text();
  return response;
}
async function rows(page) { return page.$$eval('.call', (nodes) => nodes.map((node) => node.dataset.id)); }

const checks = {
  async 'a browser at / lands on the console, signed in by the printed link'() {
    const page = await open(link);
    await until(page, () => document.querySelector('h1')?.textContent === 'Traffic');
    assert.equal(new URL(page.url()).hash, '');
    const led = await open(`${origin}/`);
    assert.ok(led.url().startsWith(`${origin}/console/`));
    await page.close(); await led.close();
  },
  async 'a call appears in the list without a reload'() {
    const page = await open();
    await until(page, () => document.querySelector('.dot.live'));
    const before = (await rows(page)).length;
    await ask();
    await until(page, (count) => document.querySelectorAll('.call').length > count, before);
    assert.match(await text(page, '.call'), /fake\/good/);
    await page.close();
  },
  async 'pause stops the list and resume fills it in'() {
    const page = await open();
    await until(page, () => document.querySelector('.dot.live'));
    await page.click('button[aria-pressed]');
    const before = await rows(page);
    await ask();
    await until(page, () => /resume \([1-9]/.test(document.querySelector('button[aria-pressed]').textContent));
    assert.deepEqual(await rows(page), before);
    await page.click('button[aria-pressed]');
    await until(page, (first) => document.querySelector('.call').dataset.id !== first, before[0]);
    await page.close();
  },
  async 'a filter shows what fits, and its address restores it'() {
    await ask('fake/bad');
    const page = await open();
    await until(page, () => document.querySelectorAll('.call').length > 1);
    await page.type('#search', 'stage:failed');
    await page.keyboard.press('Enter');
    await until(page, () => [...document.querySelectorAll('.call')].every((row) => row.textContent.includes('failed')));
    const restored = await open(page.url().replace(`${origin}/console/`, ''));
    await until(restored, () => document.querySelectorAll('.call').length > 0);
    assert.ok((await restored.$$eval('.call', (nodes) => nodes.map((node) => node.textContent))).every((each) => each.includes('failed')));
    await page.close(); await restored.close();
  },
  async 'a repaired call shows its repairs, its patches with their reason and risk, and its answer'() {
    await ask('fake/messy');
    const page = await open('traffic?q=model:fake/messy');
    await until(page, () => document.querySelector('.call'));
    await page.click('.call');
    await until(page, () => document.querySelector('.tree .value'));
    assert.match(await text(page, '.tree'), /"Ada"/);
    assert.match(await text(page, '.tree'), /36/);
    await page.evaluate(() => [...document.querySelectorAll('[role=tab]')].find((tab) => tab.textContent === 'Repairs').click());
    const shown = await text(page, '[role=tabpanel]');
    assert.match(shown, /replace/);
    assert.match(shown, /low/);
    assert.ok(await page.$('.diff del'));
    assert.ok(await page.$('.diff ins'));
    await page.close();
  },
  async 'the answer is poured: replayed step by step, with every character accounted for, and a mark where it became impossible'() {
    await ask('fake/poured', 'Ada', { stream: true, slipform: { stream_mode: 'live' } });
    const page = await open('traffic?q=model:fake/poured');
    await until(page, () => document.querySelector('.call'));
    await page.click('.call');
    await until(page, () => document.querySelector('input[type=range]'));
    const last = await page.$eval('input[type=range]', (node) => Number(node.max));
    const seen = [];
    const at = async (position) => page.evaluate((to) => {
      const slider = document.querySelector('input[type=range]');
      slider.value = String(to);
      slider.dispatchEvent(new Event('input'));
      const totals = document.querySelector('.totals').dataset;
      return { tree: document.querySelector('.tree').textContent, pour: document.querySelector('.pour').textContent, in: Number(totals.in), sum: Number(totals.released) + Number(totals.held) + Number(totals.dropped), fault: document.querySelector('.pour .fault')?.textContent ?? null };
    }, position);
    for (let position = 0; position <= last; position += 1) seen.push(await at(position));
    for (const step of seen) assert.equal(step.sum, step.in);
    const named = seen.findIndex((step) => step.tree.includes('"Ada"'));
    assert.ok(named > 0 && named < last, 'a field is there before the end');
    assert.ok(!seen[named].tree.includes('36'));
    assert.ok(seen[last].tree.includes('36'));
    assert.deepEqual(seen.map((step) => step.fault).filter(Boolean), [',']);
    for (const position of [2, last, 0, named]) assert.deepEqual(await at(position), seen[position]);
    assert.match(await text(page, '[role=tabpanel]'), /Return corrected JSON/);
    await page.close();
  },
  async 'the dialect ledger says what lower().report says'() {
    const page = await open('traffic?q=model:fake/messy');
    await until(page, () => document.querySelector('.call'));
    await page.click('.call');
    await until(page, () => document.querySelector('[role=tab]'));
    await page.evaluate(() => [...document.querySelectorAll('[role=tab]')].find((tab) => tab.textContent === 'Dialect').click());
    await until(page, () => document.querySelector('[role=tabpanel] table'));
    const shown = await page.$$eval('[role=tabpanel] tbody tr', (lines) => lines.map((line) => [...line.cells].map((cell) => cell.textContent)));
    const names = await page.$$eval('[role=tabpanel] thead th', (heads) => heads.map((head) => head.textContent));
    const expected = JSON.parse(process.env.LEDGER);
    for (const [dialect, losses] of Object.entries(expected)) {
      const column = names.indexOf(dialect);
      const found = shown.filter((line) => line[column] !== 'kept').map((line) => [line[0], line[column].split(' · ')[0]]);
      assert.deepEqual(found.sort(), losses.map(([pointer, action]) => [pointer || '/', action]).sort());
    }
    await page.close();
  },
  async 'a recorded answer is judged again without a call, and an edited schema changes the verdict'() {
    const page = await open('traffic?q=model:fake/messy');
    await until(page, () => document.querySelector('.call'));
    await page.click('.call');
    await until(page, () => document.querySelector('[role=tab]'));
    const before = await (await fetch(`${process.env.COUNT}`)).text();
    await page.evaluate(() => [...document.querySelectorAll('[role=tab]')].find((tab) => tab.textContent === 'Re-judge').click());
    await page.evaluate(() => document.querySelector('[role=tabpanel] button').click());
    await until(page, () => /valid today/.test(document.querySelector('[role=tabpanel]').textContent));
    await page.evaluate(() => { const box = document.querySelector('[role=tabpanel] textarea'); box.value = box.value.replace('150', '20'); document.querySelector('[role=tabpanel] button').click(); });
    await until(page, () => /✗/.test(document.querySelector('[role=tabpanel]').textContent));
    assert.equal(await (await fetch(`${process.env.COUNT}`)).text(), before);
    await page.close();
  },
  async 'an exported call dropped on another browser shows the same page and asks nobody'() {
    const page = await open('traffic?q=model:fake/messy');
    await until(page, () => document.querySelector('.call'));
    await page.click('.call');
    await until(page, () => document.querySelector('.tree .value'));
    const id = page.url().split('/').pop();
    const shown = await text(page, '.split');
    const call = await page.evaluate(async (each) => (await (await fetch(`/console/api/v1/requests/${each}`)).json()), id);
    await page.goto(`${origin}/console/about`);
    await until(page, () => document.querySelector('h1')?.textContent === 'About');
    let asked = 0;
    page.on('request', (request) => { if (request.url().includes('/requests/')) asked += 1; });
    await page.evaluate((given) => {
      const data = new DataTransfer();
      data.items.add(new File([JSON.stringify({ slipform: 1, call: given })], 'call.slipform.json'));
      window.dispatchEvent(new DragEvent('drop', { dataTransfer: data }));
    }, call);
    await until(page, () => document.querySelector('.tree .value'));
    assert.equal(await text(page, '.split'), shown);
    assert.equal(asked, 0);
    await page.close();
  },
  async 'copy as curl is run by a shell and gives the same value'() {
    await ask('fake/good', `it's $(touch ${out}/owned) '; touch ${out}/owned2 #\n"done"`);
    const page = await open('traffic?q=model:fake/good');
    await until(page, () => document.querySelector('.call'));
    await page.click('.call');
    await until(page, () => document.querySelector('[data-kind=curl]'));
    const copied = await page.evaluate(async () => {
      let found = '';
      Object.defineProperty(navigator, 'clipboard', { value: { writeText: async (each) => { found = each; } }, configurable: true });
      document.querySelector('[data-kind=curl]').click();
      await new Promise((resolve) => setTimeout(resolve, 50));
      return found;
    });
    const answer = JSON.parse(execFileSync('bash', ['-c', copied], { encoding: 'utf-8', stdio: ['ignore', 'pipe', 'ignore'], env: { ...process.env, SLIPFORM_KEY: 'none' } }));
    assert.deepEqual(JSON.parse(answer.choices[0].message.content), { name: 'Ada', age: 36 });
    await page.close();
  },
  async 'a wrong schema is told before anything runs, and models stream side by side'() {
    const page = await open('playground');
    await page.waitForSelector('#run:not([disabled])');
    await page.evaluate(() => { const box = document.querySelector('#schema'); box.value = '{"type": "objekt"}'; box.dispatchEvent(new Event('input')); });
    await until(page, () => document.querySelector('#run').disabled && /✗/.test(document.querySelector('#problems').textContent));
    await page.evaluate((schema) => {
      const box = document.querySelector('#schema');
      box.value = JSON.stringify(schema);
      box.dispatchEvent(new Event('input'));
      const add = document.querySelector('input[list]');
      for (const name of ['fake/good', 'fake/messy']) { add.value = name; add.dispatchEvent(new Event('change')); }
      [...document.querySelectorAll('button[title=remove]')].filter((each) => !/good|messy/.test(each.textContent)).forEach((each) => each.click());
    }, SCHEMA);
    await page.waitForSelector('#run:not([disabled])');
    await page.click('#run');
    await until(page, () => [...document.querySelectorAll('.columns .card')].length === 2 && [...document.querySelectorAll('.columns .card')].every((card) => /✓ valid/.test(card.textContent)));
    assert.ok(await page.$('.columns a[href^="/console/r/"]'));
    await page.close();
  },
  async 'hostile words stay words'() {
    const page = await open('traffic?q=model:fake/hostile');
    await page.evaluate(() => { window.xss = undefined; });
    for (const each of JSON.parse(process.env.HOSTILE)) await ask('fake/hostile', each, { user: each });
    await page.goto(`${origin}/console/traffic?q=model:fake/hostile`);
    await until(page, () => document.querySelector('.call'));
    await page.click('.call');
    await until(page, () => document.querySelector('[role=tab]'));
    for (const name of ['Attempts', 'Repairs', 'Timeline', 'Raw']) await page.evaluate((tab) => [...document.querySelectorAll('[role=tab]')].find((each) => each.textContent === tab).click(), name);
    assert.equal(await page.evaluate(() => window.xss), undefined);
    assert.equal(await page.$$eval('main script, main iframe, main img, main object', (nodes) => nodes.length), 0);
    await page.close();
  },
  async 'a call is found, opened and left with the keyboard alone'() {
    const page = await open();
    await until(page, () => document.querySelectorAll('.call').length > 1);
    await page.keyboard.press('/');
    await page.keyboard.type('stage:failed');
    await page.keyboard.press('Enter');
    await page.keyboard.press('Escape');
    await until(page, () => document.querySelectorAll('.call').length && [...document.querySelectorAll('.call')].every((row) => row.textContent.includes('failed')));
    await page.keyboard.press('j');
    await page.keyboard.press('Enter');
    await until(page, () => document.querySelector('[role=tab]'));
    await page.keyboard.press('Escape');
    await until(page, () => document.querySelector('h1')?.textContent === 'Traffic');
    await page.keyboard.press('g'); await page.keyboard.press('p');
    await until(page, () => document.querySelector('h1')?.textContent === 'Playground');
    await page.close();
  },
  async 'every page is accessible, in both themes and both widths, without sideways scrolling'() {
    const page = await open();
    await until(page, () => document.querySelector('.call'));
    const call = await page.$eval('.call', (node) => node.getAttribute('href').replace('/console/', ''));
    const wrong = [];
    for (const path of ['overview', 'traffic', 'playground', 'schemas', 'providers', 'keys', 'about', call]) {
      for (const theme of ['light', 'dark']) {
        await page.evaluate((each) => localStorage.setItem('theme', each), theme);
        for (const width of [1280, 390]) {
          await page.setViewport({ width, height: 800 });
          await page.goto(`${origin}/console/${path}`, { waitUntil: 'load' });
          await until(page, () => document.querySelector('main h1'));
          await page.evaluate(axe);
          const found = await page.evaluate(() => window.axe.run(document, { runOnly: ['wcag2a', 'wcag2aa', 'wcag21aa', 'wcag22aa'] }).then((result) => result.violations.map((each) => `${each.id}: ${each.nodes[0].html.slice(0, 120)}`)));
          if (found.length) wrong.push(`${path} ${theme} ${width}: ${found.join('; ')}`);
          const sideways = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
          if (sideways > 0) wrong.push(`${path} ${width}: ${sideways} px too wide`);
        }
      }
    }
    assert.deepEqual(wrong, []);
    await page.close();
  },
  async 'ten thousand calls are a few dozen elements, and the last one can be reached'() {
    const filled = await fetch(process.env.FILL, { method: 'POST' });
    const last = await filled.text();
    const page = await open();
    await until(page, () => document.querySelectorAll('.call').length > 10);
    for (let round = 0; round < 80; round += 1) {
      const done = await page.evaluate(async () => { const list = document.querySelector('.list'); list.scrollTop = list.scrollHeight; await new Promise((resolve) => setTimeout(resolve, 60)); return list.scrollHeight; });
      if ((await rows(page)).includes(last)) break;
      assert.ok(done > 0);
    }
    const shown = await rows(page);
    assert.ok(shown.length <= 60, `${shown.length} elements`);
    assert.ok(shown.includes(last));
    await page.close();
  },
  async 'nothing was asked of anybody else, and the page had no errors'() {
    assert.deepEqual(strangers, []);
    assert.deepEqual(complaints, []);
  },
};

const results = {};
for (const [name, check] of Object.entries(checks)) {
  try { await check(); results[name] = ''; } catch (error) { results[name] = String(error.stack || error).slice(0, 1500); }
}
await browser.close();
console.log(JSON.stringify(results));
