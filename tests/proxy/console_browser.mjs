// Drives the console in a real browser. Usage: node console_browser.mjs LINK OUT [words…]; prints one JSON object: a name → '' or what was wrong.
// The numbers are those of the behaviours that were promised; words choose checks by their names.
import { execFile, spawn } from 'node:child_process';
import { request } from 'node:http';
import { readFileSync, writeFileSync } from 'node:fs';
import { promisify } from 'node:util';
import assert from 'node:assert/strict';
import { launch, need } from '../chromium.mjs';

const run = promisify(execFile);
const axe = readFileSync(need.resolve('axe-core/axe.min.js'), 'utf-8');
const [link, out, ...words] = process.argv.slice(2);
const { HOSTILE, LEDGER, TEXTS, QUIET, KEYED, OPERATOR, CALLER, PYTHON, WORKERS, CANARY } = process.env;
const origin = new URL(link).origin;
const browser = await launch();
const strangers = [];
const complaints = [];
const expected = /Failed to load resource.*(4\d\d|503)|ERR_CONNECTION_REFUSED|ERR_INTERNET_DISCONNECTED|ERR_INCOMPLETE_CHUNKED|ERR_EMPTY_RESPONSE|ERR_CONNECTION_RESET/;

// A new page is a new process, which takes seconds on a busy machine: those that a check is done with are used again.
const free = [];
async function open(path = 'traffic', base = origin, context = null) {
  const page = (!context && free.pop()) || await made(context || browser.defaultBrowserContext(), !context);
  page.base = new URL(base).origin;
  await page.bringToFront();
  await page.setViewport({ width: 1280, height: 800 });
  await page.goto(path.startsWith('http') ? path : `${base}/console/${path}`, { waitUntil: 'load' });
  return page;
}

async function made(context, isKept) {
  const page = await context.newPage();
  page.on('request', (sent) => { if (!sent.url().startsWith(page.base) && !/^(data|blob|about):/.test(sent.url())) strangers.push(sent.url()); });
  page.on('pageerror', (error) => complaints.push(error.message));
  page.on('console', (message) => { if (message.type() === 'error' && !expected.test(message.text())) complaints.push(message.text()); });
  if (isKept) page.close = async () => { await page.setOfflineMode(false); await page.goto('about:blank'); free.push(page); };
  return page;
}

const text = (page, selector) => page.$eval(selector, (node) => node.textContent);
/** Wait until a test holds in a page; one that fails because the page is not there yet (or is being left) is asked again. */
async function until(page, test, ...values) {
  const end = Date.now() + 40000;
  let last = 'it does not hold';
  while (Date.now() < end) {
    try { if (await page.evaluate(test, ...values)) return; } catch (error) { last = error.message; }
    await new Promise((resolve) => { setTimeout(resolve, 30); });
  }
  const shown = await page.evaluate(() => document.body.innerText.slice(0, 500)).catch(String);
  throw new Error(`waited 40 s for ${test} (${last}) at ${page.url()}, which shows ${JSON.stringify(shown)}`);
}
const titled = (page, title) => until(page, (each) => document.querySelector('h1')?.textContent === each, title);
const SCHEMA = { type: 'object', properties: { name: { type: 'string' }, age: { type: 'integer', minimum: 0, maximum: 150 } }, required: ['name', 'age'], additionalProperties: false };
const LIVE = { stream: true, slipform: { stream_mode: 'live' } };
const bodyOf = (model, said, more = {}) => ({ model, messages: [{ role: 'user', content: said }], response_format: { type: 'json_schema', json_schema: { name: 'person', schema: SCHEMA } }, ...more });
async function ask(model = 'fake/good', said = 'Ada is 36', more = {}, base = origin, headers = {}) {
  const response = await fetch(`${base}/v1/chat/completions`, { method: 'POST', headers: { 'content-type': 'application/json', ...headers }, body: JSON.stringify(bodyOf(model, said, more)) });
  return { status: response.status, text: await response.text() };
}
const tell = async (what, base = origin) => (await fetch(`${base}/test/${what}`)).json();
const rows = (page) => page.$$eval('.call', (nodes) => nodes.map((node) => node.dataset.id));
const api = (page, path) => page.evaluate(async (each) => (await fetch(`/console/api/v1/${each}`)).json(), path);
const tab = (page, name) => page.evaluate((each) => [...document.querySelectorAll('[role=tab]')].find((button) => button.textContent === each).click(), name);
const bare = (base, path, headers = {}, method = 'GET', body = '') => new Promise((resolve, reject) => {
  const sent = request(`${base}${path}`, { method, headers, agent: false }, (response) => { let got = ''; response.on('data', (piece) => { got += piece; if (response.headers['content-type'] === 'text/event-stream') response.destroy(); }); response.on('close', () => resolve({ status: response.statusCode, headers: response.headers, text: got })); response.on('error', () => {}); });
  sent.on('error', reject);
  sent.end(body);
});
/** The page of the newest call that fits. */
async function callPage(query, base = origin) {
  const page = await open(`traffic?q=${encodeURIComponent(query)}`, base);
  await until(page, () => document.querySelector('.call'));
  await page.click('.call');
  await until(page, () => document.querySelector('[role=tab]'));
  return page;
}
const type = (page, query) => page.evaluate((each) => { const box = document.querySelector('#search'); box.value = each; box.dispatchEvent(new Event('change')); }, query);
const clip = (page) => page.evaluate(() => { window.copied = null; Object.defineProperty(navigator, 'clipboard', { value: { writeText: async (each) => { window.copied = each; } }, configurable: true }); });

const checks = {
  async '1 a browser at / lands on the console, signed in by the printed link; others get links'() {
    const page = await open(link);
    await titled(page, 'Traffic');
    assert.equal(new URL(page.url()).hash, '');
    const led = await open(`${origin}/`);
    assert.ok(led.url().startsWith(`${origin}/console/`));
    const told = await (await fetch(`${origin}/`, { headers: { accept: '*/*' } })).json();
    assert.equal(told.links.console, '/console/');
    await page.close(); await led.close();
  },
  async 'an empty console offers a sample, and one click shows its answer being poured'() {
    const page = await open();
    await page.waitForSelector('#sample');
    await page.click('#sample');
    await until(page, () => document.querySelector('.player'));
    const filled = () => document.querySelectorAll('.tree .value').length;
    await until(page, () => document.querySelectorAll('.tree .value').length === 0 || document.querySelector('.player [aria-label=Pause]'));
    await until(page, () => !document.querySelector('.player [aria-label=Pause]'));
    assert.ok(await page.evaluate(filled) >= 4);
    await page.close();
  },
  async '2 without a session there is a sign-in page; a caller’s key does not open it, an operator’s does'() {
    const page = await open('traffic', KEYED);
    await page.waitForSelector('#key');
    assert.equal((await bare(KEYED, '/console/api/v1/me')).status, 401);
    await page.type('#key', CALLER);
    await page.keyboard.press('Enter');
    await until(page, () => /not an operator/.test(document.querySelector('[role=alert]').textContent));
    await page.$eval('#key', (box, key) => { box.value = key; }, OPERATOR);
    await page.focus('#key');
    await page.keyboard.press('Enter');
    await titled(page, 'Traffic');
    await page.goto(`${KEYED}/console/keys`);
    await until(page, () => /ops/.test(document.querySelector('main').textContent));
    assert.ok(!(await page.content()).includes(OPERATOR));
    await page.close();
  },
  async '3 a foreign host name is refused: page, data and events'() {
    for (const path of ['/console/', '/console/api/v1/me', '/console/api/v1/events']) assert.equal((await bare(origin, path, { host: 'evil.example' })).status, 403);
  },
  async '4 a page of another origin changes nothing'() {
    const page = await open(`${KEYED}/healthz`, KEYED);
    await page.evaluate(async (target) => {
      for (const options of [{ mode: 'no-cors', headers: { 'content-type': 'text/plain' } }, { mode: 'cors', headers: { 'content-type': 'application/json', 'x-slipform-console': '1' } }]) await fetch(`${target}/console/api/v1/tracing`, { method: 'POST', credentials: 'include', body: '{"minutes": 5}', ...options }).catch(() => {});
    }, QUIET);
    const forms = await bare(QUIET, '/console/api/v1/tracing', { origin: KEYED, 'content-type': 'application/x-www-form-urlencoded' }, 'POST', 'minutes=5');
    assert.equal(forms.status, 403);
    strangers.length = 0;
    complaints.length = 0;
    await page.close();
    const own = await open(process.env.QUIET_LINK, QUIET);
    await titled(own, 'Traffic');
    assert.equal((await api(own, 'me')).traces.tracing, null);
    await own.close();
  },
  async '5 a call of an SDK appears in the list at once, without a reload'() {
    const page = await open();
    await until(page, () => document.querySelector('.dot.live'));
    const OpenAI = need('openai').default;
    const before = (await rows(page)).length;
    await new OpenAI({ baseURL: `${origin}/v1`, apiKey: 'none' }).chat.completions.create(bodyOf('fake/good', 'Ada is 36'));
    await page.waitForFunction((count) => document.querySelectorAll('.call').length > count, { timeout: 10000, polling: 30 }, before);
    assert.match(await text(page, '.call'), /fake\/good/);
    await page.close();
  },
  async '6 pause stops the list and resume fills it in'() {
    const page = await open();
    await until(page, () => document.querySelector('.dot.live') && document.querySelector('.call'));
    await page.click('.pause');
    const before = await rows(page);
    await ask();
    await until(page, () => /Resume \([1-9]/.test(document.querySelector('.pause').textContent));
    assert.deepEqual(await rows(page), before);
    await page.click('.pause');
    await until(page, (first) => document.querySelector('.call').dataset.id !== first, before[0]);
    await page.close();
  },
  async '7 each filter shows what fits, its address restores it, and an empty one says which word is too narrow'() {
    await ask('fake/bad');
    await ask('fake/messy');
    await ask('fake/good', 'Ada', LIVE);
    const page = await open();
    await until(page, () => document.querySelectorAll('.call').length > 2);
    const all = (await api(page, 'requests?limit=200')).rows;
    for (const [query, fits] of [['stage:failed', (row) => row.stage === 'failed'], ['model:fake/me*', (row) => row.model === 'fake/messy'], ['provider:good', (row) => row.provider === 'good'], ['api:openai-chat', (row) => row.api === 'openai-chat'], ['schema:person', (row) => row.schema === 'person'], ['outcome:ok', (row) => row.outcome === 'ok'], ['stream:true', (row) => row.stream], ['ms:<100000', (row) => row.ms < 1e5], ['attempts:>1', (row) => row.attempts > 1], ['messy stage:repaired', (row) => row.model === 'fake/messy' && row.stage === 'repaired']]) {
      const wanted = all.filter(fits).map((row) => row.id);
      assert.ok(wanted.length, query);
      await type(page, query);
      await until(page, (ids) => { const found = [...document.querySelectorAll('.call')].map((node) => node.dataset.id); return found.length >= Math.min(ids.length, 12) && found.every((id) => ids.includes(id)); }, wanted);
      assert.equal(new URL(page.url()).searchParams.get('q'), query);
    }
    const restored = await open(page.url().replace(`${origin}/console/`, ''));
    await until(restored, () => document.querySelector('.call'));
    assert.deepEqual(await rows(restored), await rows(page));
    await type(page, 'stage:failed model:fake/messy schema:person');
    await until(page, () => /Without .*there would be/.test(document.querySelector('.empty')?.textContent));
    await page.close(); await restored.close();
  },
  async '9 a call under way has its page: the tree fills in its order before the stream ends'() {
    const page = await open();
    await until(page, () => document.querySelector('.dot.live'));
    await tell('reset');
    const answered = ask('fake/slow', 'Ada', LIVE);
    await until(page, () => /pouring/.test(document.querySelector('.call')?.textContent));
    await page.click('.call');
    await until(page, () => /waiting|characters sent/.test(document.querySelector('main').textContent));
    const seen = [];
    for (let step = 0; step < 40 && seen.length < 2; step += 1) {
      await tell('step?model=slow');
      const values = await page.evaluate(() => new Promise((resolve) => { setTimeout(() => resolve([...document.querySelectorAll('.tree .value')].map((node) => node.closest('li').dataset.path)), 130); }));
      for (const path of values) if (!seen.includes(path)) seen.push(path);
      if (seen.length === 1) assert.match(await text(page, '.head'), /pouring/);
    }
    assert.deepEqual(seen, ['$.name', '$.age']);
    await tell('step?model=slow&n=100');
    await answered;
    await until(page, () => document.querySelector('.player'));
    await page.close();
  },
  async '10, 11, 15 the pour accounts for every character, marks the fault where the engine says, beside the retry; any position is a fresh replay'() {
    await ask('fake/poured', 'Ada', LIVE);
    const page = await callPage('model:fake/poured');
    const call = await api(page, `requests/${page.url().split('/').pop()}`);
    const fault = call.trace.report.attempts[0].stream.fault;
    const last = await page.$eval('input[type=range]', (node) => Number(node.max));
    const at = async (position) => page.evaluate((to) => {
      const slider = document.querySelector('input[type=range]');
      slider.value = String(to);
      slider.dispatchEvent(new Event('input'));
      const first = document.querySelector('[data-attempt="1"]');
      const totals = [...document.querySelectorAll('.totals')].map((node) => [Number(node.dataset.in), Number(node.dataset.released) + Number(node.dataset.held) + Number(node.dataset.dropped)]);
      const mark = first.querySelector('.fault');
      const before = mark ? [...first.querySelectorAll('.pour span')].slice(0, [...first.querySelectorAll('.pour span')].indexOf(mark)).map((node) => node.textContent).join('').length : null;
      return { tree: document.querySelector('.tree').textContent, pour: document.querySelector('.columns').textContent, totals, fault: before };
    }, position);
    const seen = [];
    for (let position = 0; position <= last; position += 1) seen.push(await at(position));
    for (const step of seen) for (const [whole, parts] of step.totals) assert.equal(parts, whole);
    const named = seen.findIndex((step) => step.tree.includes('"Ada"'));
    assert.ok(named > 0 && named < last, 'a field is there before the end');
    assert.ok(!seen[named].tree.includes('36'));
    assert.ok(seen[last].tree.includes('36'));
    assert.equal(seen[last].fault, fault.at);
    assert.match(seen[last].pour, new RegExp(`stopped at byte ${fault.byte}`));
    assert.match(seen[last].pour, /retry prompt.*\$\.age/s);
    for (const position of [2, last, 0, named]) assert.deepEqual(await at(position), seen[position]);
    await page.click('.player .round');
    await until(page, () => !document.querySelector('.player [aria-label=Pause]') && document.querySelector('input[type=range]').value === document.querySelector('input[type=range]').max);
    await page.close();
  },
  async '12 the diff of thirty recorded texts is what fix --explain says'() {
    const page = await open();
    await titled(page, 'Traffic');
    const texts = JSON.parse(TEXTS);
    assert.ok(texts.length >= 30);
    const wrong = await page.evaluate(async (given) => {
      const from = (name) => import(new URL(name, document.querySelector('script[type=module]').src).href);
      const [{ diff }, { visible }] = [await from('panels.js'), await from('dom.js')];
      return given.filter((each) => {
        const nodes = [...diff(each.text, each.edits).childNodes];
        const said = (skip) => nodes.filter((node) => node.tagName !== skip).map((node) => node.textContent).join('');
        return said('INS') !== visible(each.text) || said('DEL') !== visible(each.repaired);
      }).map((each) => each.text);
    }, texts);
    assert.deepEqual(wrong, []);
    await page.close();
  },
  async '13 a repaired call shows its repairs in place, and its patches with their reason and risk'() {
    const page = await callPage('model:fake/messy');
    await until(page, () => document.querySelector('.tree .value'));
    assert.match(await text(page, '.tree'), /"Ada".*36/s);
    assert.ok(await page.$('.tree .patched'));
    await tab(page, 'Repairs');
    const shown = await text(page, '[role=tabpanel]');
    assert.match(shown, /wrong quote/);
    assert.match(shown, /replace.*\/age.*text as number.*low/s);
    assert.ok(await page.$('.diff del') && await page.$('.diff ins'));
    await page.close();
  },
  async 'evidence shows how sure the model was of each value, and where it stands in the prompt'() {
    // Characters that are two to a browser stand before what is found.
    await ask('fake/sure', '🎂🎂 Ada is 36', { slipform: { evidence: { confidence: 'logprobs' } } });
    await ask('fake/sure', 'Somebody called Ada', { slipform: { evidence: { confidence: 'logprobs' } } });
    const [without, found] = (await api(await open(), 'requests?limit=2&q=model:fake/sure')).rows;
    const page = await open(`r/${found.id}`);
    await until(page, () => document.querySelectorAll('.tree .span').length === 2);
    const at = (path) => page.$eval(`[data-path="${path}"]`, (row) => [row.querySelector('.trust').getAttribute('aria-label'), row.querySelector('.span').textContent]);
    assert.deepEqual(await at('$.name'), ['score 0.95', 'exact']);
    assert.deepEqual(await at('$.age'), ['score 0.50', 'exact']);
    for (const [path, words] of [['$.name', 'Ada'], ['$.age', '36']]) {
      await page.click(`[data-path="${path}"] .span`);
      await until(page, (each) => document.querySelector('mark')?.textContent === each, words);
    }
    await page.goto(`${origin}/console/r/${without.id}`);
    await until(page, () => document.querySelector('.tree .none'));
    assert.match(await text(page, '[data-path="$.age"]'), /not in the source/);
    await page.close();
  },
  async '14 the dialect ledger says what lower().report says'() {
    const page = await callPage('model:fake/messy');
    await tab(page, 'Dialect');
    await until(page, () => document.querySelector('[role=tabpanel] table'));
    const shown = await page.$$eval('[role=tabpanel] tbody tr', (lines) => lines.map((line) => [...line.cells].map((cell) => cell.querySelector('code')?.title ?? cell.textContent)));
    const names = await page.$$eval('[role=tabpanel] thead th', (heads) => heads.map((each) => each.textContent));
    const wanted = JSON.parse(LEDGER);
    assert.equal(Object.keys(wanted).length, 4);
    for (const [dialect, losses] of Object.entries(wanted)) {
      const column = names.indexOf(dialect);
      const found = shown.filter((line) => line[column] !== 'kept').map((line) => [line[0], line[column].split(' · ')[0]]);
      assert.deepEqual(found.sort(), losses.map(([pointer, action]) => [pointer || '/', action]).sort());
    }
    await page.close();
  },
  async '16 an exported call dropped on another browser shows the same page, offline'() {
    const page = await callPage('model:fake/poured');
    const shown = await text(page, '.split');
    const saved = await page.evaluate(async () => {
      const made = [];
      URL.createObjectURL = (blob) => { made.push(blob); return 'data:,'; };
      [...document.querySelectorAll('.head button')].find((each) => each.textContent === 'Export').click();
      return made[0].text();
    });
    const other = await browser.createBrowserContext();
    const there = await open(link, origin, other);
    await titled(there, 'Traffic');
    await there.setOfflineMode(true);
    let asked = 0;
    there.on('request', (sent) => { if (!/events|\/me$|\/conversations$/.test(sent.url())) asked += 1; }); // the list it leaves may still read its conversations
    await there.evaluate((given) => {
      const data = new DataTransfer();
      data.items.add(new File([given], 'call.slipform.json'));
      window.dispatchEvent(new DragEvent('drop', { dataTransfer: data }));
    }, saved);
    await until(there, () => document.querySelector('.tree .value'));
    assert.equal(await text(there, '.split'), shown);
    assert.equal(asked, 0);
    for (const [content, said] of [['{"slipform": 1, "call": {"id": 1}}', /not an exported call/], ['['.repeat(300) + ']'.repeat(300), /deeper/]]) {
      await there.evaluate((given) => { const data = new DataTransfer(); data.items.add(new File([given], 'x.json')); window.dispatchEvent(new DragEvent('drop', { dataTransfer: data })); }, content);
      await until(there, (source) => new RegExp(source).test(document.querySelector('[data-banner=file]')?.textContent), said.source);
    }
    await other.close(); await page.close();
  },
  async '17 a recorded answer is judged again without a call, and an edited schema changes the verdict'() {
    const page = await callPage('model:fake/messy');
    const before = await tell('count');
    await tab(page, 'Re-validate');
    await page.evaluate(() => document.querySelector('[role=tabpanel] button').click());
    await until(page, () => /valid today/.test(document.querySelector('[role=tabpanel]').textContent));
    await page.evaluate(() => { const box = document.querySelector('[role=tabpanel] textarea'); box.value = box.value.replace('150', '20'); document.querySelector('[role=tabpanel] button').click(); });
    await until(page, () => /✗/.test(document.querySelector('[role=tabpanel]').textContent));
    assert.equal(await tell('count'), before);
    await page.close();
  },
  async '18 whatever a call is copied as is run, and gives the same value'() {
    await ask('fake/good', `it's $(touch ${out}/owned) '; touch ${out}/owned2 #\n"done" \u{1f600}`);
    const page = await callPage('model:fake/good');
    await clip(page);
    const copies = {};
    for (const kind of await page.$$eval('.copy', (nodes) => nodes.map((node) => node.dataset.kind))) {
      await page.evaluate((each) => { window.copied = null; document.querySelector(`[data-kind="${each}"]`).click(); }, kind);
      await until(page, () => window.copied);
      copies[kind] = await page.evaluate(() => window.copied);
    }
    assert.deepEqual(Object.keys(copies), ['curl', 'Python · openai', 'Python · anthropic', 'Python · google-genai', 'Python · slipform', 'TypeScript', 'pytest']);
    const env = { ...process.env, SLIPFORM_KEY: 'none' };
    const file = `${process.env.SLIPFORM_NODE}/copied-${process.pid}.mjs`;
    writeFileSync(file, copies.TypeScript);
    writeFileSync(`${out}/copied.json`, JSON.stringify(Object.fromEntries(Object.entries(copies).filter(([kind]) => /^py/i.test(kind)))));
    const [shell, node, python] = await Promise.all([run('bash', ['-c', copies.curl], { env }), run(process.execPath, [file], { env }), run(PYTHON, ['-m', 'tests.proxy.console_copies', `${out}/copied.json`], { env })]).finally(() => run('rm', [file]));
    const answers = [JSON.parse(shell.stdout).choices[0].message.content, node.stdout, ...python.stdout.trim().split('\n')];
    assert.equal(answers.length, 7);
    for (const answer of answers) assert.deepEqual(JSON.parse(answer), { name: 'Ada', age: 36 });
    await page.close();
  },
  async '19 the playground marks a wrong schema at its place, streams three models at once, and Stop ends them upstream'() {
    const page = await open('playground');
    await page.waitForSelector('#run:not([disabled])');
    const edit = (value) => page.evaluate((given) => { const box = document.querySelector('#schema'); box.value = given; box.dispatchEvent(new Event('input')); }, value);
    await edit('{"type": "object", "properties": {"age": {"type": "intger"}}}');
    await until(page, () => document.querySelector('#run').disabled && /intger/.test(document.querySelector('.editor .wrong')?.textContent) && /✗/.test(document.querySelector('#problems').textContent));
    await edit('{"type": }');
    await until(page, () => /not JSON/.test(document.querySelector('#problems').textContent) && document.querySelector('.editor .wrong'));
    await edit(JSON.stringify(SCHEMA));
    await page.evaluate(() => {
      const add = document.querySelector('input[list]');
      for (const name of ['fake/slow', 'fake/slower', 'fake/slowest']) { add.value = name; add.dispatchEvent(new Event('change')); }
      [...document.querySelectorAll('button[title=remove]')].filter((each) => !/slow/.test(each.textContent)).forEach((each) => each.click());
    });
    await page.waitForSelector('#run:not([disabled])');
    const models = ['slow', 'slower', 'slowest'];
    await tell('reset');
    await page.click('#run');
    for (const model of models) await tell(`step?model=${model}&n=5`);
    await until(page, () => [...document.querySelectorAll('.columns .card')].length === 3 && [...document.querySelectorAll('.columns .card')].every((card) => /"Ada"/.test(card.textContent) && /pouring/.test(card.textContent)));
    await page.click('#stop');
    await until(page, () => [...document.querySelectorAll('.columns .card')].every((card) => /stopped/.test(card.textContent)));
    for (const model of models) { await tell(`step?model=${model}&n=3`); for (let tries = 0; tries < 100 && await tell(`writing?model=${model}`); tries += 1) await tell(`step?model=${model}&n=1`); assert.equal(await tell(`writing?model=${model}`), 0); }
    await tell('reset');
    await page.evaluate(() => document.querySelector('#run').click());
    for (const model of models) await tell(`step?model=${model}&n=200`);
    await until(page, () => [...document.querySelectorAll('.columns .card')].every((card) => /✓ valid/.test(card.textContent)));
    assert.match(await text(page, 'main'), /Agreement: 2 of 2/);
    assert.ok(await page.$('.columns a[href^="/console/r/"]'));
    await page.close();
  },
  async '191 the playground has fields, examples and forms, tools, turns, limits, saved cases, and marks where models differ'() {
    const page = await open('playground');
    await page.waitForSelector('#run:not([disabled])');
    const fill = (selector, value) => page.$eval(selector, (box, given) => { box.value = given; box.dispatchEvent(new Event('input')); }, value);
    const press = (selector) => page.$eval(selector, (button) => button.click());
    const properties = () => page.$eval('#schema', (box) => Object.keys(JSON.parse(box.value).properties).join());
    assert.deepEqual(await page.$$eval('main select', (boxes) => boxes.flatMap((box) => [...box.options].map((each) => each.value)).filter((each) => each === 'json_mode')), []);
    await fill('#example', '{"title": "x", "pages": [1]}');
    await press('#from-example');
    await until(page, () => /pages/.test(document.querySelector('#schema').value));
    assert.equal(await properties(), 'title,pages');
    await fill('.form-row input', 'colour');
    await press('#from-form');
    assert.equal(await properties(), 'colour');
    await fill('#fields', 'name, age int');
    await press('#from-fields');
    await until(page, () => /age/.test(document.querySelector('#schema').value));
    await page.evaluate(() => {
      const add = document.querySelector('input[list]');
      for (const name of ['fake/good', 'fake/twin']) { add.value = name; add.dispatchEvent(new Event('change')); }
      [...document.querySelectorAll('button[title=remove]')].filter((each) => !/good|twin/.test(each.textContent)).forEach((each) => each.click());
    });
    await fill('#temperature', '0.5');
    await fill('#limit', '77');
    await page.waitForSelector('#run:not([disabled])');
    await press('#run');
    await until(page, () => [...document.querySelectorAll('.columns .card')].filter((card) => /✓ valid/.test(card.textContent)).length === 2);
    assert.deepEqual(await page.$$eval('.columns .mark.differs', (marks) => marks.map((each) => each.closest('[data-path]').dataset.path)), ['$.age', '$.age']);
    const made = JSON.parse((await api(page, `requests/${(await api(page, 'requests?limit=1&q=model:fake/twin')).rows[0].id}`)).trace.request.text);
    assert.deepEqual([made.temperature, made.max_tokens], [0.5, 77]);
    await fill('#case-name', 'two people');
    await press('#save-case');
    await fill('#schema', '');
    await fill('#tools', '[{"name": "forecast", "parameters": {"type": "object", "properties": {"year": {"type": "integer"}}, "required": ["year"]}}]');
    await page.evaluate(() => {
      const add = document.querySelector('input[list]');
      add.value = 'fake/caller'; add.dispatchEvent(new Event('change'));
      for (let other; (other = [...document.querySelectorAll('button[title=remove]')].find((each) => !/caller/.test(each.textContent)));) other.click();
    });
    await page.waitForSelector('#run:not([disabled])');
    await press('#run');
    await until(page, () => /forecast/.test(document.querySelector('.columns .card')?.textContent) && /Give the results/.test(document.querySelector('.columns .card').textContent));
    await page.$eval('.columns .card p button', (button) => button.click());
    await until(page, () => /result of forecast/.test(document.querySelector('.turns').textContent));
    await fill('.turns textarea[aria-label="Text of turn 3"]', 'sunny');
    await press('#run');
    await until(page, () => /the last turn is sunny/.test(document.querySelector('.columns .card')?.textContent));
    await page.select('#cases', 'two people');
    await until(page, () => /age/.test(document.querySelector('#schema')?.value) && document.querySelector('#temperature').value === '0.5');
    await page.close();
  },
  async '192 a tool call that was asked again shows both calls, each with its own verdict'() {
    const tools = [{ type: 'function', function: { name: 'forecast', parameters: { type: 'object', properties: { year: { type: 'integer' } }, required: ['year'], additionalProperties: false } } }];
    await ask('fake/recaller', 'When?', { tools, response_format: undefined });
    const page = await callPage('model:fake/recaller');
    await tab(page, 'Tools');
    const shown = await page.$$eval('[role=tabpanel] .turn', (nodes) => nodes.map((node) => node.textContent));
    assert.equal(shown.length, 2);
    assert.match(shown[0], /forecast.*✗ invalid.*next.*\$\.year/s);
    assert.match(shown[1], /forecast.*✓ valid.*2027/s);
    assert.match(await text(page, '[aria-label="Attempt 1"]'), /✗ invalid/);
    assert.match(await text(page, '[aria-label="What attempt 2 was asked"]'), /year/);
    await page.close();
  },
  async '193 an operator makes a key that is shown once, changes it and revokes it'() {
    const page = await open('keys', KEYED, await browser.createBrowserContext());
    await page.waitForSelector('#key');
    await page.type('#key', OPERATOR);
    await page.click('button.main');
    await page.waitForSelector('input[name=name]');
    await page.type('input[name=name]', 'newcomer');
    await page.type('input[name=max_cost]', '2.5');
    await page.click('form button.main');
    await page.waitForSelector('#secret');
    const secret = await text(page, '#secret');
    assert.equal((await bare(KEYED, '/v1/models', { authorization: `Bearer ${secret}` })).status, 200);
    const inRow = (label) => page.evaluate((each) => { const row = [...document.querySelectorAll('tbody tr')].find((one) => one.cells[0].textContent === 'newcomer'); [...row.querySelectorAll('button')].find((button) => button.textContent.startsWith(each)).click(); }, label);
    await inRow('Change');
    await until(page, () => /Limits of newcomer/.test(document.querySelector('main').textContent));
    assert.equal(await page.$$eval('input[name=max_cost]', (boxes) => boxes[1].value), '2.5');
    await page.evaluate(axe);
    assert.deepEqual(await page.evaluate(async () => (await window.axe.run(document, { resultTypes: ['violations'] })).violations.map((one) => `${one.id}: ${one.nodes[0].html.slice(0, 160)}`)), []);
    await page.$$eval('input[name=requests_per_minute]', (boxes) => { boxes[1].value = '7'; });
    await page.evaluate(() => [...document.querySelectorAll('form button')].find((button) => button.textContent === 'Change').click());
    await until(page, () => [...document.querySelectorAll('tbody tr')].some((row) => row.cells[0].textContent === 'newcomer' && row.cells[3].textContent === '7'));
    await inRow('Revoke');
    await inRow('Revoke newcomer for good');
    await until(page, () => ![...document.querySelectorAll('tbody tr')].some((row) => row.cells[0].textContent === 'newcomer'));
    assert.equal((await bare(KEYED, '/v1/models', { authorization: `Bearer ${secret}` })).status, 401);
    await page.close();
  },
  async '194 the calls of a conversation lead from one to the next, and the list says where each stands'() {
    const messages = [{ role: 'user', content: 'once upon' }];
    for (const said of ['a time', 'there was']) {
      const answer = JSON.parse((await ask('fake/echo', '', { messages, response_format: undefined })).text).choices[0].message;
      messages.push(answer, { role: 'user', content: said });
    }
    await ask('fake/echo', '', { messages, response_format: undefined });
    const page = await open('traffic?q=model:fake/echo');
    await until(page, () => [...document.querySelectorAll('.call')].slice(0, 3).map((each) => each.querySelector('.place')?.textContent).join() === '3/3,2/3,1/3');
    const [last, middle] = await rows(page);
    await page.goto(`${origin}/console/r/${middle}`, { waitUntil: 'load' });
    await until(page, () => /Call 2 of 3/.test(document.querySelector('.conversation')?.textContent));
    await page.$eval('.conversation summary', (summary) => summary.click());
    assert.equal((await page.$$('.conversation tbody a')).length, 2);
    await page.evaluate(axe);
    assert.deepEqual(await page.evaluate(async () => (await window.axe.run(document, { resultTypes: ['violations'] })).violations.map((one) => `${one.id}: ${one.nodes[0].html.slice(0, 160)}`)), []);
    await page.$eval('.conversation a[rel=next]', (each) => each.click());
    await until(page, (id) => location.pathname === `/console/r/${id}` && /Call 3 of 3/.test(document.querySelector('.conversation')?.textContent) && !document.querySelector('.conversation a[rel=next]'), last);
    await page.close();
  },
  async '195 an image of the playground is sent with the prompt, and one that is too large is not'() {
    const small = `${out}/dot.png`;
    const large = `${out}/large.png`;
    writeFileSync(small, Buffer.from('iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==', 'base64'));
    writeFileSync(large, Buffer.alloc(5 * 1024 * 1024));
    const page = await open('playground');
    await page.waitForSelector('#run:not([disabled])');
    const pick = await page.$('#images');
    const shown = (words) => until(page, (each) => document.querySelector('#images').closest('details').textContent.includes(each), words);
    await pick.uploadFile(large);
    await shown('large.png is larger than 4 MB');
    await pick.uploadFile(small);
    await shown('dot.png');
    await page.evaluate(() => {
      const add = document.querySelector('input[list]');
      add.value = 'fake/twin'; add.dispatchEvent(new Event('change'));
      for (let other; (other = [...document.querySelectorAll('button[title=remove]')].find((each) => !/twin/.test(each.textContent)));) other.click();
    });
    await page.$eval('#schema', (box, schema) => { box.value = schema; box.dispatchEvent(new Event('input')); }, JSON.stringify(SCHEMA));
    await page.waitForSelector('#run:not([disabled])');
    await page.click('#run');
    await until(page, () => [...document.querySelectorAll('.columns .card')].some((card) => /✓ valid/.test(card.textContent)));
    const made = JSON.parse((await api(page, `requests/${(await api(page, 'requests?limit=1&q=model:fake/twin')).rows[0].id}`)).trace.request.text);
    const { content } = made.messages.at(-1);
    assert.deepEqual(content.map((part) => part.type), ['text', 'image_url']);
    assert.match(content[1].image_url.url, /^data:image\/png;base64,iVBORw0KGgo/);
    await page.close();
  },
  async '196 the page of a call says why it failed, was refused, waited or was answered by another model'() {
    const outcome = async (model, more) => {
      await ask(`vendor-${model}/m`, 'Ada is 36', more);
      const page = await callPage(`model:vendor-${model}/m`);
      await page.waitForSelector('.outcome');
      const shown = `${await text(page, '.head .pill')} ${await page.$eval('.outcome', (card) => card.innerText)}`;
      await page.close();
      return shown;
    };
    const PLAIN = { response_format: undefined };
    assert.match(await outcome('down'), /failed, 503[^]*overloaded[^]*called 2 times[^]*overloaded; slipform waited 0\.\d+ s and tried again[^]*What to do/);
    assert.match(await outcome('limited'), /failed, 429[^]*Rate limit reached[^]*after 600 s[^]*Wait, lower the rate/);
    assert.match(await outcome('limited', PLAIN), /failed, 429[^]*after 600 s[^]*Wait, lower the rate/);
    assert.match(await outcome('locked', PLAIN), /failed, 401[^]*Incorrect API key[^]*Check the key of this provider: slipform doctor says/);
    for (const more of [{}, { stream: true }, PLAIN, { ...PLAIN, stream: true }]) assert.match(await outcome('refusing', more), /I can't help with that[^]*Rephrase the prompt/);
    const short = await outcome('short');
    assert.match(short, /cut off[^]*truncated[^]*Raise the limit of output tokens/);
    assert.doesNotMatch(short, /200|not recorded/);
    await ask('vendor-breaking/m');
    const page = await callPage('model:vendor-breaking/m');
    const [first, second] = await page.$$eval('.attempt', (cards) => cards.map((card) => card.innerText));
    assert.match(first, /upstream error[^]*connection/);
    assert.doesNotMatch(second, /retry prompt/);
    await page.close();
  },
  async '20 forty hostile words stay words, wherever they stand'() {
    const given = JSON.parse(HOSTILE);
    assert.ok(given.length >= 40);
    await Promise.all(given.map((each) => ask('fake/hostile', each, { user: each, response_format: { type: 'json_schema', json_schema: { name: 'x', schema: { title: each, type: 'object', description: each, properties: { name: { type: 'string', description: each }, [each]: { type: 'string' } }, required: ['name'] } } } })));
    await Promise.all(given.map((each) => ask(each.replace(/[\u0000-\u001f]/g, ''), each)));
    await Promise.all(given.slice(0, 8).map((each) => ask('fake/failing', each, {}, origin, { 'x-request-id': each.replace(/[^\x21-\x7e]/g, '') })));
    const page = await open('traffic');
    await until(page, () => document.querySelectorAll('.call').length > 20);
    const found = await api(page, 'requests?limit=200&q=model:fake/hostile');
    const failed = await api(page, 'requests?limit=8&q=stage:failed');
    for (const row of [...found.rows.slice(0, given.length), ...failed.rows]) {
      await page.evaluate((id) => { const a = document.createElement('a'); a.href = `/console/r/${id}`; document.querySelector('main').append(a); a.click(); }, row.id);
      await until(page, (id) => location.pathname.endsWith(id) && document.querySelector('[role=tab]'), row.id);
      await page.evaluate(() => { for (const each of document.querySelectorAll('[role=tab]')) each.click(); });
      const bad = await page.evaluate(() => [window.xss === undefined, document.querySelectorAll('main script, main iframe, main img, main object, main [onerror], main [onload]').length]);
      assert.deepEqual(bad, [true, 0], JSON.stringify(row));
    }
    for (const name of ['schemas', 'overview', 'providers']) {
      await page.goto(`${origin}/console/${name}`);
      await until(page, () => document.querySelector('main h1'));
      assert.equal(await page.evaluate(() => window.xss), undefined);
    }
    const shown = await page.evaluate(() => { const probe = '\u202egnp\u0000\u200b'; return import(new URL('dom.js', document.querySelector('script[type=module]').src).href).then((dom) => dom.visible(probe)); });
    assert.equal(shown, '⍰gnp␀⍰');
    await page.close();
  },
  async '21 with traces off, words of a call reach no page, not even of one under way'() {
    const page = await open('traffic', QUIET);
    await until(page, () => document.querySelector('.dot.live'));
    await tell('reset', QUIET);
    const answered = ask('fake/slow', CANARY, LIVE, QUIET);
    await until(page, () => /pouring/.test(document.querySelector('.call')?.textContent));
    await page.click('.call');
    await tell('step?model=slow&n=8', QUIET);
    await until(page, () => Number(document.querySelector('.totals')?.dataset.in) > 0);
    assert.equal(await page.$('.pour'), null);
    await tell('step?model=slow&n=200', QUIET);
    await answered;
    await until(page, () => document.querySelector('[role=tab]'));
    assert.match(await text(page, '.note'), /were not recorded/);
    const { rows: listed } = await api(page, 'requests');
    for (const path of ['requests', 'stats', 'schemas', 'providers', 'me', ...listed.map((row) => `requests/${row.id}`)]) assert.ok(!JSON.stringify(await api(page, path)).includes(CANARY), path);
    assert.ok(!(await page.content()).includes(CANARY));
    await page.close();
  },
  async '21b a call that begins while the list is on its way is shown'() {
    const page = await open('about', QUIET);
    await until(page, () => document.querySelector('.dot.live'));
    await tell('reset', QUIET);
    const client = await page.createCDPSession();
    await client.send('Fetch.enable', { patterns: [{ urlPattern: '*/api/v1/requests*', requestStage: 'Response' }] });
    const paused = new Promise((resolve) => { client.once('Fetch.requestPaused', resolve); });
    await page.click('a[href="/console/traffic"]');
    const { requestId } = await paused;
    await page.evaluate(() => new Promise((resolve) => {
      const source = new EventSource('/console/api/v1/events');
      window.begun = new Promise((begun) => { source.addEventListener('begin', begun); });
      source.addEventListener('hello', resolve);
    }));
    const answered = ask('fake/slow', 'Ada is 36', LIVE, QUIET);
    await page.evaluate(() => window.begun.then(() => true));
    await client.send('Fetch.continueRequest', { requestId });
    await client.send('Fetch.disable');
    await until(page, () => /pouring/.test(document.querySelector('.call')?.textContent));
    await tell('step?model=slow&n=200', QUIET);
    await answered;
    await page.close();
  },
  async '22 words are kept for a while, with a banner everywhere, and that ends by itself'() {
    const page = await open('about', QUIET);
    await titled(page, 'About');
    await page.evaluate(() => fetch('/console/api/v1/tracing', { method: 'POST', headers: { 'content-type': 'application/json', 'x-slipform-console': '1' }, body: '{"minutes": 0.03, "count": 5}' }));
    await until(page, () => /being recorded/.test(document.querySelector('[data-banner=tracing]')?.textContent));
    await ask('fake/good', 'kept words', {}, QUIET);
    await until(page, () => !document.querySelector('[data-banner=tracing]'));
    await ask('fake/good', 'other words', {}, QUIET);
    const [later, kept] = (await api(page, 'requests')).rows;
    assert.match(JSON.stringify(await api(page, `requests/${kept.id}`)), /kept words/);
    assert.equal((await api(page, `requests/${later.id}`)).trace, null);
    assert.equal((await api(page, 'me')).traces.tracing, null);
    await page.close();
  },
  async '23 with the keyboard alone a failed call is found, replayed and copied as curl'() {
    await ask('fake/bad', 'Ada', LIVE);
    const page = await open();
    await until(page, () => document.querySelectorAll('.call').length > 1);
    await clip(page);
    const press = async (...keys) => { for (const key of keys) await page.keyboard.press(key); };
    await press('/');
    await page.keyboard.type('stage:failed model:fake/bad stream:true');
    await press('Enter', 'Escape');
    await until(page, () => document.querySelectorAll('.call').length && [...document.querySelectorAll('.call')].every((row) => row.textContent.includes('fake/bad')));
    await press('j', 'Enter');
    await until(page, () => document.querySelector('.player'));
    await press('ArrowLeft');
    const position = await page.$eval('input[type=range]', (node) => [node.value, node.max]);
    assert.equal(Number(position[0]), Number(position[1]) - 1);
    await press('Space');
    await until(page, () => document.querySelector('input[type=range]').value === document.querySelector('input[type=range]').max);
    await press('c', 'Enter');
    await until(page, () => /^curl /.test(window.copied));
    await press('Escape', 'Escape');
    await titled(page, 'Traffic');
    await press('g', 'p');
    await titled(page, 'Playground');
    await page.close();
  },
  async 'a pinned call stays on top, and pins can be taken off'() {
    const page = await callPage('model:fake/messy');
    const pin = () => page.evaluate(() => { const button = [...document.querySelectorAll('.head button')].find((each) => /in$/.test(each.textContent)); button.click(); });
    await pin();
    await until(page, () => /Unpin/.test(document.querySelector('.head').textContent));
    const id = page.url().split('/').pop();
    await page.goto(`${origin}/console/traffic`);
    await until(page, (each) => document.querySelector(`.meta a[href$="${each}"]`), id);
    await page.goto(`${origin}/console/r/${id}`);
    await until(page, () => /Unpin/.test(document.querySelector('.head')?.textContent));
    await pin();
    await until(page, () => !/Unpin/.test(document.querySelector('.head').textContent));
    await page.close();
  },
  async 'the API page tries a call and shows its stream as it comes'() {
    const page = await open('api');
    await until(page, () => document.querySelectorAll('.op').length > 5);
    await page.evaluate(() => { [...document.querySelectorAll('.op')].find((each) => /\/v1\/chat\/completions/.test(each.textContent)).open = true; });
    await page.waitForSelector('.op textarea');
    await page.$eval('.op textarea', (box, body) => { box.value = body; }, JSON.stringify(bodyOf('fake/slow', 'Ada', LIVE)));
    await tell('reset');
    await page.click('.op .main');
    await tell('step?model=slow&n=5');
    await until(page, () => /data: /.test(document.querySelector('.reply')?.textContent) && !/DONE/.test(document.querySelector('.reply').textContent));
    await tell('step?model=slow&n=200');
    await until(page, () => /DONE/.test(document.querySelector('.reply').textContent));
    assert.ok(await page.$('.op a[href^="/console/r/"]'));
    await page.close();
  },
  async 'odd calls are shown: unknown ids, vendors that fail, deep and long and broken answers, schemas that refer to themselves'() {
    const page = await open('r/0123456789abcdef0123456789abcdef');
    await titled(page, 'This call is not here');
    const node = { $ref: '#/$defs/node' };
    const recursive = { $defs: { node: { type: 'object', properties: { value: { type: 'string' }, next: { anyOf: [node, { type: 'null' }] } } } }, $ref: '#/$defs/node' };
    const format = (schema) => ({ response_format: { type: 'json_schema', json_schema: { name: 'odd', schema } } });
    const deep = '{"value":"x","next":'.repeat(60) + 'null' + '}'.repeat(60);
    await ask('fake/echo', deep, format(recursive));
    await ask('fake/echo', JSON.stringify({ text: 'y'.repeat(400000) }), format({ type: 'object', properties: { text: { type: 'string' } } }));
    await ask('fake/echo', JSON.stringify(Object.fromEntries(Array.from({ length: 3000 }, (_, index) => [`k${index}`, index]))), format({ type: 'object' }));
    await ask('fake/echo', JSON.stringify({ text: 'a\u0000b\ud800c\u202ed' }), format({ type: 'object', properties: { text: { type: 'string' } } }));
    await ask('fake/failing', 'Ada');
    const { rows: found } = await api(page, 'requests?limit=5');
    assert.equal(found[0].stage, 'failed');
    for (const row of found) {
      const began = Date.now();
      await page.goto(`${origin}/console/r/${row.id}`, { waitUntil: 'load' });
      await until(page, () => document.querySelector('[role=tab]'));
      await page.evaluate(() => { for (const each of document.querySelectorAll('[role=tab]')) each.click(); });
      assert.ok(Date.now() - began < 10000);
      assert.equal(await page.evaluate(() => document.documentElement.scrollWidth > innerWidth), false);
    }
    await page.goto(`${origin}/console/nowhere`);
    await titled(page, 'Nothing here');
    await page.setJavaScriptEnabled(false);
    await page.goto(`${origin}/console/`);
    assert.match(await text(page, 'noscript'), /slipform ask --report/);
    await page.setJavaScriptEnabled(true);
    await page.close();
  },
  async 'a schema has its page: fields with how often each was wrong, strict mode, an example, its dialects'() {
    const page = await open('schemas');
    await until(page, () => document.querySelector('.card h2 a[href$="/schemas/person"]'));
    await page.click('.card h2 a[href$="/schemas/person"]');
    await titled(page, 'person');
    const { schemas: [health] } = await api(page, 'schemas/person?window=2592000');
    const wrong = health.fields.filter((each) => each.schema_path.startsWith('/properties/age/')).reduce((sum, each) => sum + each.count, 0);
    assert.ok(wrong > 0);
    const shown = await page.$eval('[data-path="$.age"] .hot', (node) => [node.textContent, node.title]);
    assert.equal(shown[0], `${((100 * wrong) / health.calls).toFixed(1)} %`);
    assert.match(shown[1], /fake\//);
    assert.equal(await page.$('[data-path="$.name"] .hot') === null, !health.fields.some((each) => each.schema_path.startsWith('/properties/name/')));
    const words = await text(page, 'main');
    assert.match(words, /already strict-mode compatible/);
    assert.match(words, /"age": \d/);
    assert.match(await text(page, 'main table'), /gemini/);
    await page.evaluate(() => { [...document.querySelectorAll('.head button')].find((each) => /Playground/.test(each.textContent)).click(); });
    await page.waitForSelector('#schema');
    assert.match(await page.$eval('#schema', (box) => box.value), /maximum/);
    await page.close();
  },
  async 'a provider is checked from its card, and says what it finds'() {
    const page = await open('providers');
    await page.waitForSelector('[data-provider=sure] button');
    await page.click('[data-provider=sure] button');
    await until(page, () => /✓ answers/.test(document.querySelector('[data-provider=sure]').textContent));
    assert.match(await text(page, '[data-provider=sure]'), /key\s*present.*127\.0\.0\.1/s);
    await page.close();
  },
  async 'a connection that is lost goes on where it was: nothing is read anew, nothing is missed'() {
    const page = await open();
    await until(page, () => document.querySelector('.dot.live'));
    await page.evaluate(() => { window.read = 0; const before = window.fetch; window.fetch = (...given) => { if (/requests\?limit/.test(given[0])) window.read += 1; return before(...given); }; });
    const before = await rows(page);
    await page.setOfflineMode(true);
    await page.evaluate(() => { Object.defineProperty(document, 'hidden', { value: true, configurable: true }); document.dispatchEvent(new Event('visibilitychange')); });
    await until(page, () => !document.querySelector('.dot.live'));
    await ask('fake/good', 'while away');
    await page.setOfflineMode(false);
    await page.evaluate(() => { delete document.hidden; document.dispatchEvent(new Event('visibilitychange')); });
    await until(page, (first) => document.querySelector('.dot.live') && document.querySelector('.call').dataset.id !== first, before[0]);
    assert.equal(await page.evaluate(() => window.read), 0);
    await page.close();
  },
  async 'a session that ends is begun again over the page, and what was typed stays'() {
    const page = await open('playground', KEYED);
    await page.waitForSelector('#prompt');
    await page.$eval('#prompt', (box) => { box.value = 'my own words'; });
    await page.deleteCookie(...(await page.cookies(`${KEYED}/console/`)).filter((each) => each.name.endsWith(new URL(KEYED).port)));
    await page.$eval('#schema', (box) => { box.value = `${box.value} `; box.dispatchEvent(new Event('input')); });
    await page.waitForSelector('dialog #key', { timeout: 40000 });
    await page.type('dialog #key', OPERATOR);
    await page.keyboard.press('Enter');
    await until(page, () => !document.querySelector('dialog #key'));
    assert.equal(await page.$eval('#prompt', (box) => box.value), 'my own words');
    await page.close();
  },
  async '25 a server that restarts: a banner, then the calls of both workers, none twice'() {
    const { command, env, link: there, address } = JSON.parse(WORKERS);
    const start = async () => {
      const process_ = spawn(command[0], command.slice(1), { env: { ...process.env, ...env, SLIPFORM_NODE: undefined }, stdio: ['ignore', 'ignore', 'inherit'] });
      for (let tries = 0; tries < 1000; tries += 1) { if (await fetch(`${address}/healthz`).then((response) => response.ok, () => false)) break; await new Promise((resolve) => { setTimeout(resolve, 50); }); }
      return process_;
    };
    const stop = (each) => new Promise((resolve) => { if (each.exitCode !== null) resolve(); each.on('exit', resolve); each.kill('SIGTERM'); });
    let server = await start();
    const context = await browser.createBrowserContext();
    try {
      const page = await open(there, address, context);
      await until(page, () => document.querySelector('.dot.live'));
      const once = () => bare(address, '/v1/chat/completions', { 'content-type': 'application/json' }, 'POST', JSON.stringify(bodyOf('fake/m', 'Ada')));
      for (let number = 0; number < 12; number += 1) await once();
      await until(page, () => document.querySelectorAll('.call').length === 12);
      assert.equal((await api(page, 'me')).workers.reached, 2);
      const before = await rows(page);
      for (const id of before) assert.equal((await api(page, `requests/${id}`)).id, id);
      assert.equal((await api(page, 'stats')).calls, 12);
      await stop(server);
      await until(page, () => document.querySelector('[data-banner=lost]'));
      server = await start();
      await until(page, () => !document.querySelector('[data-banner=lost]') && document.querySelector('.dot.live'));
      await once();
      // All of them, each once; a list that is read while the second worker starts may lack the newest for a moment.
      await until(page, (ids) => { const now = [...document.querySelectorAll('.call')].map((node) => node.dataset.id); return now.length === 13 && new Set(now).size === 13 && ids.every((id) => now.includes(id)); }, before);
    } finally { await context.close(); await stop(server); }
  },
  async '24 every page is accessible, in both themes and widths, without sideways scrolling, also at 200 %'() {
    const page = await open();
    await until(page, () => document.querySelector('.call'));
    const find = async (query) => `r/${(await api(page, `requests?limit=1&q=${encodeURIComponent(query)}`)).rows[0].id}`;
    const paths = ['traffic', 'traffic?q=nosuch', 'overview', 'playground', 'schemas', 'schemas/person', 'schemas/none', 'providers', await find('model:fake/sure'), 'keys', 'api', 'about', await find('model:fake/poured'), await find('model:fake/messy'), await find('model:fake/recaller'), await find('model:fake/failing'), 'r/none'];
    const wrong = [];
    for (const path of paths) {
      await page.setViewport({ width: 1280, height: 800 });
      await page.goto(`${origin}/console/${path}`, { waitUntil: 'load' });
      await until(page, () => document.querySelector('main h1') && !document.querySelector('main')?.textContent.includes('checking …'));
      await page.evaluate(() => { for (const each of document.querySelectorAll('.play details')) each.open = true; });
      await page.evaluate(axe);
      for (const [theme, width, rules] of [['light', 1280, null], ['dark', 1280, ['color-contrast']], ['dark', 390, null], ['light', 390, ['color-contrast', 'target-size']], ['light', 640, []]]) {
        await page.setViewport({ width, height: 800 });
        const [found, sideways] = await page.evaluate(async (each, only) => {
          document.documentElement.dataset.theme = each;
          await new Promise((resolve) => { requestAnimationFrame(() => setTimeout(resolve, 0)); });
          const options = only ? { runOnly: { type: 'rule', values: only } } : { runOnly: ['wcag2a', 'wcag2aa', 'wcag21aa', 'wcag22aa'] };
          const result = only && !only.length ? { violations: [] } : await window.axe.run(document, { ...options, resultTypes: ['violations'] });
          return [result.violations.map((one) => `${one.id}: ${one.nodes[0].html.slice(0, 160)} ${one.nodes[0].failureSummary.slice(0, 200)}`), document.documentElement.scrollWidth - innerWidth];
        }, theme, rules);
        if (found.length) wrong.push(`${path} ${theme} ${width}: ${found.join('; ')}`);
        if (sideways > 0) wrong.push(`${path} ${width}: ${sideways} px too wide`);
      }
    }
    assert.deepEqual(wrong, []);
    await page.close();
  },
  async '8 ten thousand calls are a few dozen elements, and the last one can be reached'() {
    const last = await tell('fill');
    const page = await open();
    await until(page, () => document.querySelectorAll('.call').length > 10);
    const reached = await page.evaluate(async (id) => {
      const list = document.querySelector('.list');
      for (let round = 0; round < 2000; round += 1) {
        list.scrollTop = list.scrollHeight;
        await new Promise((resolve) => { setTimeout(resolve, 10); });
        if (document.querySelector(`[data-id="${id}"]`)) return true;
      }
      return false;
    }, last);
    assert.ok(reached);
    assert.ok((await rows(page)).length <= 60, `${(await rows(page)).length} elements`);
    await page.close();
  },
  async 'nothing was asked of anybody else, and the page had no errors'() {
    assert.deepEqual(strangers, []);
    assert.deepEqual(complaints, []);
  },
};

const results = {};
const late = () => new Promise((_, fail) => { setTimeout(() => fail(new Error('took longer than 100 seconds')), 100000).unref(); });
for (const [name, check] of Object.entries(checks)) {
  if (words.length && !words.includes(name.split(' ')[0].replace(',', ''))) continue;
  const began = Date.now();
  try { await Promise.race([check(), late()]); results[name] = ''; } catch (error) { results[name] = `${String(error.message || error).slice(0, 1500)} (${(error.stack.match(/console_browser\.mjs:\d+/g) || ['?']).join(' < ')})`; }
  console.error(`${Date.now() - began} ms ${name.slice(0, 60)} ${results[name].slice(0, 600)}`);
}
console.log(JSON.stringify(results));
await Promise.race([browser.close(), new Promise((resolve) => { setTimeout(resolve, 3000); })]);
process.exit(0);
