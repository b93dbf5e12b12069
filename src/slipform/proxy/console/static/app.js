// The shell: pages by address, sign-in, events, theme and keys.
import { ApiError, get, listen, post, del } from './api.js';
import { h, replace } from './dom.js';
import { about, api, keys, overview, providers, schemas } from './pages.js';
import { playground } from './playground.js';
import { request } from './request.js';
import { traffic } from './traffic.js';

const PAGES = [['overview', 'Overview', overview], ['traffic', 'Traffic', traffic], ['playground', 'Playground', playground], ['schemas', 'Schemas', schemas],
  ['providers', 'Providers', providers], ['keys', 'Keys', keys], ['api', 'API', api], ['about', 'About', about]];
const HELP = [['/', 'search calls'], ['j k', 'next, previous call'], ['Enter', 'open it'], ['Esc', 'back to the list'], ['g t', 'traffic'], ['g p', 'playground'], ['g o', 'overview'], ['Space', 'play or pause the pour'], ['← →', 'one step'], ['Ctrl Enter', 'run the playground'], ['?', 'this help']];

const state = { go, refresh: () => show(), draft: null, kept: null, imported: null };
let page = {};
let stopListening = null;
let lead = '';

const main = h('main', { id: 'main', tabindex: '-1' });
const live = h('span', { class: 'dot', role: 'status' }, 'connecting');
const banner = h('div', {});
const rail = h('nav', { class: 'rail', 'aria-label': 'Pages' }, h('ul', {}, PAGES.map(([path, name]) => h('li', {}, h('a', { href: `/console/${path}` }, name)))));
const help = h('dialog', { 'aria-label': 'Keys' }, h('h2', {}, 'Keys'), h('dl', {}, HELP.map(([key, what]) => [h('dt', {}, h('code', {}, key)), h('dd', {}, what)])), h('button', { onclick: () => help.close() }, 'close'));

function theme(value) {
  const dark = value || localStorage.getItem('theme') || (matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light');
  document.documentElement.dataset.theme = dark;
  return dark;
}
theme();

async function start() {
  const token = new URLSearchParams(location.hash.slice(1)).get('t');
  if (token) {
    history.replaceState(null, '', location.pathname);
    try { await post('session', { token }); } catch (error) { signIn(error.message); return; }
  }
  try { await get('me'); } catch (error) {
    if (error instanceof ApiError && error.status === 401) { signIn(''); return; }
    replace(document.body, h('main', { class: 'signin card' }, h('h1', {}, 'slipform'), h('p', {}, error.message)));
    return;
  }
  shell();
}

function signIn(message) {
  const key = h('input', { type: 'password', id: 'key', autocomplete: 'off', 'aria-label': 'An operator’s key' });
  const told = h('p', { class: 'bad', role: 'alert' }, message);
  const enter = async (event) => {
    event.preventDefault();
    try { await post('session', { key: key.value }); shell(); } catch (error) { replace(told, error.message); }
  };
  replace(document.body, h('main', { class: 'signin card' }, h('h1', {}, 'slipform console'), h('p', {}, 'On this machine, ', h('code', {}, 'slipform console'), ' opens it signed in. Elsewhere, an operator’s key does.'), h('form', { onsubmit: enter }, key, ' ', h('button', { class: 'main' }, 'sign in')), told));
}

function shell() {
  const switcher = h('button', { onclick: () => { localStorage.setItem('theme', theme(document.documentElement.dataset.theme === 'dark' ? 'light' : 'dark')); show(); } }, 'light / dark');
  replace(document.body, h('a', { class: 'skip', href: '#main' }, 'to the page'), h('header', { class: 'top' }, h('a', { class: 'brand', href: '/console/traffic' }, h('img', { src: '/console/static/icon.svg', alt: '' }), 'slipform'), h('span', { class: 'space' }), live,
    h('button', { onclick: () => help.showModal(), 'aria-label': 'Keys' }, '?'), switcher, h('button', { onclick: async () => { await del('session'); location.reload(); } }, 'sign out')), rail, main, help);
  document.addEventListener('click', follow);
  document.addEventListener('keydown', onKey);
  window.addEventListener('popstate', show);
  window.addEventListener('dragover', (event) => event.preventDefault());
  window.addEventListener('drop', onDrop);
  const forward = (name) => (data) => { if (page.events && page.events[name]) page.events[name](data); };
  stopListening = listen({ begin: forward('begin'), end: forward('end'), pour: forward('pour'), gap: forward('gap') }, (connected) => {
    live.classList.toggle('live', connected);
    replace(live, connected ? 'live' : 'reconnecting');
    if (connected && live.dataset.lost) forward('gap')({});
    live.dataset.lost = connected ? '' : 'yes';
  });
  show();
}

function follow(event) {
  const link = event.target.closest('a');
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey || !link.pathname.startsWith('/console') || link.origin !== location.origin || link.download || link.getAttribute('href').startsWith('#')) return;
  event.preventDefault();
  go(link.pathname + link.search);
}

function go(path) {
  history.pushState(null, '', path);
  show();
}

let showing = 0;
async function show() {
  if (page.close) page.close();
  page = {};
  const mine = ++showing;
  const path = location.pathname.replace(/^\/console\/?/, '');
  const name = path.split('/')[0] || 'traffic';
  for (const link of rail.querySelectorAll('a')) {
    if (link.pathname === `/console/${name}` || (name === 'r' && link.pathname === '/console/traffic')) link.setAttribute('aria-current', 'page');
    else link.removeAttribute('aria-current');
  }
  document.title = `${name === 'r' ? 'Call' : name} · slipform`;
  const found = PAGES.find(([each]) => each === name);
  try {
    const opened = name === 'r' ? await request(main, state, path.split('/')[1]) : found ? await found[2](main, state) : notFound();
    if (mine === showing) page = opened || {};
    else if (opened && opened.close) opened.close();
  } catch (error) {
    if (error instanceof ApiError && error.status === 401) { if (stopListening) stopListening(); signIn('The session is over.'); return; }
    replace(main, h('p', { class: 'banner bad', role: 'alert' }, error.message));
  }
  void banner;
}

function notFound() {
  replace(main, h('h1', {}, 'Not found'), h('p', {}, h('a', { href: '/console/traffic' }, 'To the traffic')));
  return {};
}

function onKey(event) {
  const typing = event.target.closest('input, textarea, select, [contenteditable]');
  const name = `${event.ctrlKey ? 'ctrl+' : event.metaKey ? 'meta+' : ''}${event.key}`;
  if (page.keys && page.keys[name] && (!typing || name.includes('+')) && !(name === ' ' && event.target.closest('button, a'))) {
    event.preventDefault();
    page.keys[name](event);
    return;
  }
  if (event.key === 'Escape' && typing) { event.preventDefault(); typing.blur(); return; }
  if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
  if (lead === 'g') {
    lead = '';
    const to = { t: 'traffic', p: 'playground', o: 'overview', s: 'schemas', k: 'keys' }[event.key];
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

/** A call that was exported, dropped on the page: it is read here and never sent anywhere. */
async function onDrop(event) {
  event.preventDefault();
  const file = event.dataTransfer && event.dataTransfer.files[0];
  if (!file || file.size > 16 * 1024 * 1024) return;
  try {
    const found = JSON.parse(await file.text());
    if (found.slipform !== 1 || typeof found.call.id !== 'string') throw new Error('not an exported call');
    state.imported = found.call;
    go(`/console/r/${encodeURIComponent(found.call.id)}`);
  } catch (error) { replace(main, h('p', { class: 'banner bad', role: 'alert' }, `That file cannot be shown: ${error.message}`)); }
}

start();
