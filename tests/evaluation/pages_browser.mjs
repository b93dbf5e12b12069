// Drives the review page and the report of an evaluation in a real browser. Usage: node pages_browser.mjs FOLDER; prints one JSON object: a name → '' or what was wrong.
import { launch, need } from '../chromium.mjs';
import { existsSync, readFileSync, rmSync } from 'node:fs';
import { pathToFileURL } from 'node:url';
import assert from 'node:assert/strict';

const axe = readFileSync(need.resolve('axe-core/axe.min.js'), 'utf-8');
const [folder] = process.argv.slice(2);

const browser = await launch();
const asked = [];
const complaints = [];

async function open(name, { width = 1280, height = 800, theme = 'light', keep = false } = {}) {
  const page = await browser.newPage();
  const url = pathToFileURL(`${folder}/${name}.html`).href;
  page.on('request', (request) => { if (request.url() !== url && !/^(data|blob):/.test(request.url())) asked.push(request.url()); });
  page.on('pageerror', (error) => complaints.push(`${name}: ${error.message}`));
  page.on('console', (message) => { if (message.type() === 'error') complaints.push(`${name}: ${message.text()}`); });
  await page.setViewport({ width, height });
  await page.emulateMediaFeatures([{ name: 'prefers-color-scheme', value: theme }]);
  await page.goto(url, { waitUntil: 'load' });
  if (!keep) {
    await page.evaluate(() => localStorage.clear());
    await page.reload({ waitUntil: 'load' });
  }
  return page;
}

const text = (page, selector) => page.$eval(selector, (node) => node.textContent);
const press = async (page, ...keys) => { for (const key of keys) await page.keyboard.press(key); };
const selected = (page) => page.$eval('.choose[aria-current]', (node) => node.dataset.pointer);
const click = (page, pointer) => page.evaluate((at) => [...document.querySelectorAll('.choose')].find((node) => node.dataset.pointer === at).click(), pointer);
const openRow = (page, words) => page.evaluate((each) => [...document.querySelectorAll('.entry')].find((node) => node.textContent.includes(each)).click(), words);
async function downloaded(page, name) {
  rmSync(`${folder}/${name}`, { force: true });
  const client = await page.createCDPSession();
  await client.send('Browser.setDownloadBehavior', { behavior: 'allow', downloadPath: folder, eventsEnabled: true });
  const done = new Promise((resolve) => { client.on('Browser.downloadProgress', (event) => { if (event.state === 'completed') resolve(); }); });
  await press(page, 'd');
  await done;
  return readFileSync(`${folder}/${name}`, 'utf-8').trim().split('\n');
}

const checks = {
  async 'the least sure row is open, with its least sure value selected in tree and source'() {
    const page = await open('review');
    assert.match(await text(page, '.entry[aria-current]'), /row 2/);
    assert.equal(await selected(page), '/total');
    assert.equal(await text(page, 'mark.selected'), '1.234,50');
    assert.deepEqual(await page.$$eval('.entry', (nodes) => nodes.map((node) => node.querySelector('.small').textContent.split(',')[0])), ['row 2', 'row 1', 'row 3']);
    await page.close();
  },
  async 'a value shows its place, and a place its value'() {
    const page = await open('review');
    await click(page, '/number');
    assert.equal(await text(page, 'mark.selected'), 'INV-7');
    await page.evaluate(() => [...document.querySelectorAll('mark')].find((node) => node.textContent === 'March 5th, 2024').click());
    assert.equal(await selected(page), '/date');
    await page.focus('mark[data-pointer="/number"]');
    await press(page, 'Enter');
    assert.equal(await selected(page), '/number');
    assert.match(await page.$eval('mark[data-pointer="/date"]', (node) => node.className), /normalised/);
    await page.close();
  },
  async 'what is not in the source, what slipform did, and scores are told'() {
    const page = await open('review');
    const line = await page.evaluate(() => [...document.querySelectorAll('.leaf')].find((node) => node.querySelector('.choose').dataset.pointer === '/customer').textContent);
    assert.match(line, /not in the source/);
    assert.match(await text(page, '.values'), /patched/);
    assert.equal(await text(page, '.leaf.selected .score'), '0.21');
    await page.close();
  },
  async 'keys accept, correct, undo, and the download is a dataset'() {
    const page = await open('review');
    await press(page, 'a');
    assert.notEqual(await selected(page), '/total');
    assert.equal(await page.evaluate(() => document.activeElement.dataset.pointer), await selected(page), 'the focus follows');
    assert.match(await page.$eval('.choose[data-pointer="/total"]', (node) => node.closest('.leaf').className), /accepted/);
    await click(page, '/customer');
    await press(page, 'e');
    await page.waitForSelector('textarea.right');
    await page.keyboard.down('Control'); await press(page, 'a'); await page.keyboard.up('Control');
    await page.keyboard.type('Acme <b>GmbH</b>');
    await press(page, 'Enter');
    assert.match(await text(page, '.values'), /Acme <b>GmbH<\/b>/);
    await press(page, 'k', 'j', 'u');
    await click(page, '/customer');
    await press(page, 'u');
    assert.match(await text(page, '.values'), /Nobody Ltd/);
    await press(page, 'e');
    await page.waitForSelector('textarea.right');
    await page.keyboard.down('Control'); await press(page, 'a'); await page.keyboard.up('Control');
    await page.keyboard.type('Acme GmbH');
    await press(page, 'Enter', 'A');
    assert.match(await text(page, '.entry[aria-current]'), /row 1/);
    await press(page, 'A');
    const rows = (await downloaded(page, 'review.corrections.jsonl')).map((line) => JSON.parse(line));
    assert.deepEqual(rows.map((row) => [row.id, row.corrected]), [['one', undefined], ['two', ['/customer']]]);
    assert.equal(rows[1].expected.customer, 'Acme GmbH');
    await openRow(page, 'row 2');
    await click(page, '/customer');
    assert.equal(await text(page, 'mark.selected'), 'Acme GmbH', 'a corrected value has its place');
    assert.match(rows[1].source, /^Invoice INV-7/);
    assert.match(await text(page, '[role=status]'), /2 of 3 rows decided, 1 corrected/);
    await page.close();
  },
  async 'the text selected in the source becomes the value'() {
    const page = await open('review');
    await click(page, '/customer');
    await page.evaluate(() => {
      const walker = document.createTreeWalker(document.querySelector('.source'), NodeFilter.SHOW_TEXT);
      for (let node = walker.nextNode(); node; node = walker.nextNode()) {
        const at = node.data.indexOf('Acme GmbH');
        if (at >= 0) { const range = document.createRange(); range.setStart(node, at); range.setEnd(node, at + 9); getSelection().removeAllRanges(); getSelection().addRange(range); }
      }
    });
    await press(page, 't');
    await click(page, '/customer');
    assert.match(await text(page, '.leaf.selected'), /Acme GmbH/);
    assert.equal(await text(page, 'mark.selected'), 'Acme GmbH');
    await click(page, '/total');
    await press(page, 't');
    assert.match(await text(page, '.right-side [role=alert]'), /Select the text/);
    await page.close();
  },
  async 'a wrong kind of value is told, and a number stays a number'() {
    const page = await open('review');
    await click(page, '/total');
    await press(page, 'e');
    await page.waitForSelector('textarea.right');
    await page.keyboard.type('much');
    await press(page, 'Enter');
    assert.match(await text(page, '.editor [role=alert]'), /no number/);
    await page.keyboard.down('Control'); await press(page, 'a'); await page.keyboard.up('Control');
    await page.keyboard.type('99.5');
    await press(page, 'Enter');
    await click(page, '/total');
    assert.equal(await text(page, '.leaf.selected .value'), '99.5');
    await page.close();
  },
  async 'x removes an item, makes a field null, and E corrects the whole row'() {
    const page = await open('review');
    await click(page, '/items/0/name');
    await press(page, 'x');
    assert.equal(await text(page, '.choose[data-pointer="/items/0/name"] .value'), 'null');
    await openRow(page, 'row 3');
    await click(page, '/0');
    await press(page, 'x');
    assert.equal(await page.$$eval('.leaf', (nodes) => nodes.length), 1);
    await press(page, 'E');
    await page.waitForSelector('dialog.whole[open] textarea');
    await page.$eval('dialog.whole textarea', (node) => { node.value = '["a", "b", "c"]'; });
    await page.click('dialog.whole button.main');
    assert.equal(await page.$$eval('.leaf.corrected', (nodes) => nodes.length), 3);
    await page.close();
  },
  async 'characters beyond the basic plane do not move places, and large integers keep their digits'() {
    const page = await open('review');
    await openRow(page, 'row 1');
    await click(page, '/name');
    assert.equal(await text(page, 'mark.selected'), 'Ada');
    assert.match(await text(page, '.values'), /10000000000000000000123/);
    await press(page, 'A');
    assert.match((await downloaded(page, 'review.corrections.jsonl')).join(), /:10000000000000000000123[,}]/);
    await page.close();
  },
  async 'decisions survive a reload'() {
    const page = await open('review');
    await press(page, 'A');
    await page.waitForFunction(() => Object.keys(localStorage).some((key) => key.startsWith('slipform-review')));
    await page.reload({ waitUntil: 'load' });
    assert.match(await text(page, '[role=status]'), /1 of 3 rows decided/);
    await page.close();
  },
  async 'rows are searched, filtered and put in order'() {
    const page = await open('review');
    const rows = () => page.$$eval('.entry', (nodes) => nodes.map((node) => Number(node.dataset.at)));
    await press(page, '/');
    await page.keyboard.type('ada');
    assert.deepEqual(await rows(), [0]);
    await press(page, 'Escape');
    await page.$eval('#search', (node) => { node.value = ''; node.dispatchEvent(new Event('input')); });
    await page.select('select[aria-label="Which rows"]', 'absent');
    assert.deepEqual(await rows(), [1]);
    await page.select('select[aria-label="Which rows"]', 'all');
    await page.select('select[aria-label="Order"]', 'input');
    assert.deepEqual(await rows(), [0, 1, 2]);
    await page.close();
  },
  async 'help lists the keys'() {
    const page = await open('review');
    await page.click('.entry[data-at="2"]');
    assert.equal(await page.evaluate(() => document.activeElement.dataset.at), '2');
    await press(page, '?');
    assert.match(await text(page, 'dialog[open]'), /accept the value/);
    await press(page, 'Escape');
    assert.equal(await page.$('dialog[open]'), null);
    await page.close();
  },
  async 'ten thousand rows: only those that are seen exist, and the last is opened like the first'() {
    const page = await open('large', { keep: true });
    assert.ok((await page.$$('.entry')).length < 60);
    assert.match(await text(page, '[role=status]'), /of 10,000 rows/);
    await page.$eval('.list', (node) => { node.scrollTop = node.scrollHeight; });
    await page.waitForFunction(() => [...document.querySelectorAll('.entry')].some((node) => node.dataset.at === '9999'));
    await page.evaluate(() => [...document.querySelectorAll('.entry')].find((node) => node.dataset.at === '9999').click());
    assert.match(await text(page, '.middle h2'), /Row 10000/);
    assert.match(await text(page, '.source'), /P10000/);
    await page.close();
  },
  async 'hostile words are only words'() {
    for (const name of ['hostile', 'hostile-report']) {
      const page = await open(name);
      if (name === 'hostile') {
        const rows = await page.$$eval('.entry', (nodes) => nodes.length);
        for (let number = 0; number < rows; number += 1) await press(page, 'e', 'Escape', 'j', 'a', 'n');
        await page.$eval('#search', (node) => { node.value = '<img src=x'; node.dispatchEvent(new Event('input')); });
        await page.$eval('.entry', (node) => node.click());
        assert.match(await text(page, '.source'), /<img/);
        assert.match(await text(page, '.values'), /__proto__/);
      } else await page.evaluate(() => document.querySelectorAll('details').forEach((node) => { node.open = true; }));
      assert.equal(await page.evaluate(() => window.xss), undefined);
      assert.equal(await page.$$eval('img, iframe, object, embed', (nodes) => nodes.length), 0);
      assert.equal(await page.evaluate(() => ({}).polluted), undefined);
      await page.close();
    }
    assert.ok(!existsSync(`${folder}/owned`));
  },
  async 'the report has its table and three kinds of pictures, all to be seen'() {
    const page = await open('report');
    const pictures = await page.$$eval('main svg[role=img]:not(.share)', (nodes) => nodes.map((node) => [node.getAttribute('aria-label'), node.getBoundingClientRect().width, node.getBoundingClientRect().height]));
    for (const [label, width, height] of pictures) assert.ok(width > 150 && height > 80, label);
    const labels = pictures.map(([label]) => label).join('\n');
    assert.match(labels, /Accuracy of each field/);
    assert.match(labels, /Accuracy against cost/);
    assert.match(labels, /by score/);
    assert.equal(await page.$$eval('table:first-of-type tbody tr', (nodes) => nodes.length > 2), true);
    assert.equal(await page.$$eval('details', (nodes) => nodes.length), 2);
    await page.click('summary');
    assert.match(await text(page, 'details[open]'), /wrong/);
    assert.equal(JSON.parse(await text(page, '#report')).version, 1);
    await page.close();
  },
  async 'the light is switched by a button'() {
    const page = await open('report');
    const paper = () => page.evaluate(() => getComputedStyle(document.querySelector('.card')).backgroundColor);
    const before = await paper();
    await page.click('#theme');
    assert.notEqual(await paper(), before);
    await page.close();
  },
  async 'both pages are accessible, light and dark, wide and narrow, and nothing is cut off at 390 pixels'() {
    const wrong = [];
    for (const name of ['review', 'report']) {
      for (const [theme, width] of [['light', 1280], ['dark', 390]]) {
        const page = await open(name, { theme, width });
        await page.evaluate(() => document.querySelectorAll('details').forEach((node) => { node.open = true; }));
        const wide = await page.evaluate(() => document.documentElement.scrollWidth);
        if (wide > width) wrong.push(`${name} is ${wide} pixels wide at ${width}`);
        await page.evaluate(axe);
        const found = await page.evaluate(() => window.axe.run(document, { runOnly: ['wcag2a', 'wcag2aa', 'wcag21aa', 'wcag22aa'] }).then((result) => result.violations.map((each) => `${each.id}: ${each.nodes[0].html.slice(0, 160)} ${each.nodes[0].failureSummary.slice(0, 200)}`)));
        wrong.push(...found.map((each) => `${name}, ${theme}: ${each}`));
        await page.close();
      }
    }
    assert.deepEqual(wrong, []);
  },
  async 'nothing was asked for, and nothing complained'() {
    assert.deepEqual(asked, []);
    assert.deepEqual(complaints, []);
  },
};

const results = {};
for (const [name, check] of Object.entries(checks)) {
  try {
    await check();
    results[name] = '';
  } catch (error) { results[name] = `${error.message}\n${error.stack}`.slice(0, 1500); }
}
await browser.close();
console.log(JSON.stringify(results));
