// The shell: pages by address, sign-in, events, banners, theme and keys.
import { ApiError, del, get, listen, post } from './api.js';
import { api } from './api_page.js';
import { h, icon, replace } from './dom.js';
import { providers, schemas } from './health.js';
import { keys } from './keys.js';
import { about, overview } from './pages.js';
import { playground } from './playground.js';
import { request } from './request.js';
import { traffic } from './traffic.js';

const PAGES = [['overview', 'Overview', overview], ['traffic', 'Traffic', traffic], ['playground', 'Playground', playground], ['schemas', 'Schemas', schemas],
  ['providers', 'Providers', providers], ['keys', 'Keys', keys], ['api', 'API', api], ['about', 'About', about]];
const HELP = [['/', 'search calls'], ['j k', 'next, previous call'], ['Enter', 'open it'], ['Esc', 'back to the list'], ['g t', 'traffic'], ['g p', 'playground'], ['g o', 'overview'], ['Space', 'play or pause the pour'], ['← →', 'one step'], ['c', 'copy as'], ['Ctrl Enter', 'run the playground'], ['?', 'this help']];
const LARGEST_FILE = 16 * 1024 * 1024;
const DEEPEST = 200;

const state = { go, refresh: () => show(), openFile, switchTheme, signOut, draft: null, kept: null, imported: null, replay: null, model: '' };
let page = {};
let early = []; // events since a page began to open: its list may have been read before them
let stopListening = null;
let lead = '';
let isShown = false;

const main = h('main', { id: 'main', tabindex: '-1' });
const live = h('span.dot', { role: 'status' }, 'connecting');
const banners = h('div', { id: 'banners', 'aria-live': 'polite' });
const rail = h('nav.rail', { 'aria-label': 'Pages' });
const help = h('dialog', { 'aria-label': 'Keys' }, h('h2', 'Keys'), h('dl', {}, HELP.map(([key, what]) => [h('dt', {}, key.split(' ').map((each) => [h('kbd', {}, each), ' '])), h('dd', {}, what)])), h('button', { onclick: () => help.close() }, 'Close'));

function theme(value) {
  const dark = value || localStorage.getItem('theme') || (matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light');
  document.documentElement.dataset.theme = dark;
  return dark;
}
theme();

function switchTheme() {
  localStorage.setItem('theme', theme(document.documentElement.dataset.theme === 'dark' ? 'light' : 'dark'));
  show();
}

async function signOut() {
  await del('session');
  location.reload();
}

async function start() {
  const token = new URLSearchParams(location.hash.slice(1)).get('t');
  if (token) {
    history.replaceState(null, '', location.pathname);
    try { await post('session', { token }); } catch (error) { signIn(error.message); return; }
  }
  try { state.model = (await get('me')).models; } catch (error) {
    if (error instanceof ApiError && error.status === 401) { signIn(''); return; }
    replace(document.body, h('main.signin.card', h('h1', 'slipform'), h('p.bad', {}, error.message)));
    return;
  }
  shell();
}

/** Ask for a key; over the page where there is one, so that what was typed there is kept. */
function signIn(message) {
  const key = h('input', { type: 'password', id: 'key', autocomplete: 'off', placeholder: 'operator’s key', 'aria-label': 'An operator’s key' });
  const told = h('p.bad', { role: 'alert' }, message);
  const enter = async (event) => {
    event.preventDefault();
    try { await post('session', { key: key.value }); } catch (error) { replace(told, error.message); return; }
    state.model = (await get('me')).models;
    if (over) { over.close(); over.remove(); connect(); } else shell();
  };
  const content = [h('h1', 'slipform console'), h('p', 'On this machine, ', h('code', 'slipform console'), ' opens it signed in. Elsewhere, an operator’s key does.'), h('form', { onsubmit: enter }, key, h('button.main', 'Sign in')), told];
  const over = isShown ? h('dialog', { 'aria-label': 'Sign in' }, content) : null;
  if (over) { document.body.append(over); over.showModal(); } else replace(document.body, h('main.signin.card', {}, content));
}

function shell() {
  isShown = true;
  const tool = (name, label, act) => h('button.plain', { 'aria-label': label, title: label, onclick: act }, icon(name));
  replace(rail, h('a.brand', { href: '/console/traffic' }, h('img', { src: new URL('./icon.svg', import.meta.url).pathname, alt: '' }), 'slipform'), h('ul', {}, PAGES.map(([path, name]) => h('li', h('a', { href: `/console/${path}`, title: name }, icon(path), h('span', {}, name))))), h('span.space'), live,
    h('div.foot', {}, tool('theme', 'Theme', switchTheme), tool('help', 'Keys', () => help.showModal()), tool('out', 'Sign out', signOut)));
  replace(document.body, h('a.skip', { href: '#main' }, 'to the page'), rail, banners, main, help);
  document.addEventListener('click', follow);
  document.addEventListener('keydown', onKey);
  window.addEventListener('popstate', show);
  window.addEventListener('signedout', () => { if (!document.querySelector('dialog[open]')) { if (stopListening) stopListening(); signIn('The session is over.'); } });
  window.addEventListener('dragover', (event) => { event.preventDefault(); document.body.classList.add('dropping'); });
  window.addEventListener('dragleave', (event) => { if (!event.relatedTarget) document.body.classList.remove('dropping'); });
  window.addEventListener('drop', (event) => { event.preventDefault(); document.body.classList.remove('dropping'); openFile(event.dataTransfer?.files[0]); });
  connect();
  show();
}

function connect() {
  if (stopListening) stopListening();
  const forward = (name) => (data) => { if (page.events) page.events[name]?.(data); else if (early.length < 1000) early.push([name, data]); };
  let lost = 0;
  stopListening = listen({ begin: forward('begin'), end: forward('end'), pour: forward('pour'), gap: forward('gap'), tracing: (data) => tell('tracing', traced(data.tracing)), draining: () => tell('draining', DRAINING) }, (connected, hello) => {
    live.classList.toggle('live', connected);
    replace(live, connected ? 'live' : 'reconnecting');
    if (connected) {
      clearTimeout(lost);
      tell('lost', null);
      tell('tracing', traced(hello.tracing));
      tell('draining', hello.draining ? DRAINING : null);
    } else {
      get('me').catch(() => {}); // tells whether the session is over
      clearTimeout(lost);
      if (!document.hidden) lost = setTimeout(() => tell('lost', [h('b', 'The server cannot be reached.'), ' What you see is as it was; trying again.'], 'bad'), 300);
    }
  });
}

const DRAINING = 'The server is shutting down; calls under way are finished.';
const told = new Map();

/** Show a banner, or with null none, under a name. */
function tell(name, content, look = '') {
  if (content) told.set(name, h('div', { class: `banner ${look}`, 'data-banner': name }, content)); else told.delete(name);
  replace(banners, [...told.values()]);
}

let ending = 0;
function traced(tracing) {
  clearTimeout(ending);
  if (!tracing) return null;
  ending = setTimeout(() => tell('tracing', null), Math.max(0, tracing.until * 1000 - Date.now()));
  return [h('span', h('b', 'Prompts and answers are being recorded'), ` until ${new Date(tracing.until * 1000).toLocaleTimeString('en-GB')}; they can be read here.`), h('button', { onclick: () => del('tracing').then(show) }, 'Stop')];
}

function follow(event) {
  const link = event.target.closest('a');
  for (const menu of document.querySelectorAll('details.menu[open]')) if (!menu.contains(event.target)) menu.open = false;
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey || !link.pathname.startsWith('/console') || link.origin !== location.origin || link.download || link.getAttribute('href').startsWith('#')) return;
  event.preventDefault();
  go(link.pathname + link.search);
}

function go(path) {
  history.pushState(null, '', path);
  scrollTo(0, 0);
  show();
}

let showing = 0;
async function show() {
  if (page.close) page.close();
  page = {};
  early = [];
  const mine = ++showing;
  const path = location.pathname.replace(/^\/console\/?/, '');
  const name = path.split('/')[0] || 'traffic';
  for (const link of rail.querySelectorAll('li a')) {
    if (link.pathname === `/console/${name}` || (name === 'r' && link.pathname === '/console/traffic')) link.setAttribute('aria-current', 'page');
    else link.removeAttribute('aria-current');
  }
  const found = PAGES.find(([each]) => each === name);
  document.title = `${name === 'r' ? 'Call' : found ? found[1] : 'Not found'} · slipform`;
  try {
    const opened = name === 'r' ? await request(main, state, path.split('/')[1]) : found ? await found[2](main, state, decodeURIComponent(path.split('/').slice(1).join('/'))) : notFound();
    if (mine === showing) { page = opened || {}; early.splice(0).forEach(([each, data]) => page.events?.[each]?.(data)); } else if (opened?.close) opened.close();
  } catch (error) {
    if (error instanceof ApiError && error.status === 401) return;
    replace(main, h('h1', 'This page could not be read'), h('p.note.bad', { role: 'alert' }, error.message), h('button', { onclick: show }, 'Try again'));
  }
}

function notFound() {
  replace(main, h('div.card.empty', h('h1', 'Nothing here'), h('p', h('a', { href: '/console/traffic' }, 'To the traffic'))));
  return {};
}

function onKey(event) {
  const typing = event.target.closest('input:not([type=range]), textarea, select, [contenteditable]');
  const name = `${event.ctrlKey ? 'ctrl+' : event.metaKey ? 'meta+' : ''}${event.key}`;
  if (document.querySelector('dialog[open]')) return;
  if (page.keys && page.keys[name] && (!typing || name.includes('+')) && !(name === ' ' && event.target.closest('button, a, summary')) && !(name === 'Enter' && event.target.closest('button, a, summary'))) {
    event.preventDefault();
    page.keys[name](event);
    return;
  }
  const menu = document.querySelector('details.menu[open]');
  if (event.key === 'Escape' && menu) { menu.open = false; menu.querySelector('summary').focus(); return; }
  if (event.key === 'Escape' && typing) { event.preventDefault(); typing.blur(); return; }
  if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
  if (lead === 'g') {
    lead = '';
    const to = { t: 'traffic', p: 'playground', o: 'overview', s: 'schemas', k: 'keys', a: 'api' }[event.key];
    if (to) go(`/console/${to}`);
    return;
  }
  if (event.key === 'g') { lead = 'g'; setTimeout(() => { lead = ''; }, 1000); }
  else if (event.key === '?') help.showModal();
  else if (event.key === '/') {
    event.preventDefault();
    const box = document.getElementById('search');
    if (box) box.focus(); else go('/console/traffic');
  } else if (event.key === 'Escape' && location.pathname.startsWith('/console/r/')) go('/console/traffic');
}

function depthOf(text) {
  let depth = 0;
  let most = 0;
  for (const [found] of text.matchAll(/"(?:[^"\\]|\\.)*"|[{[]|[}\]]/g)) {
    if (found === '{' || found === '[') most = Math.max(most, ++depth); else if (found === '}' || found === ']') depth -= 1;
  }
  return most;
}

/** A call that was exported: it is read here and never sent anywhere. */
async function openFile(file) {
  if (!file) return;
  try {
    if (file.size > LARGEST_FILE) throw new Error('it is larger than 16 MB');
    const text = await file.text();
    if (depthOf(text) > DEEPEST) throw new Error(`it is nested deeper than ${DEEPEST} levels`);
    const found = JSON.parse(text);
    if (found.slipform !== 1 || typeof found.call.id !== 'string' || typeof found.call.model !== 'string') throw new Error('it is not an exported call');
    state.imported = found.call;
    go(`/console/r/${encodeURIComponent(found.call.id)}`);
  } catch (error) { tell('file', [h('b', 'That file cannot be shown:'), ` ${error.message}. `, h('button', { onclick: () => tell('file', null) }, 'Close')], 'bad'); }
}

start();
