// Starts the Chromium that npm brings, with its own font for sans-serif: the one way to a browser for all drivers.
import { createRequire } from 'node:module';
import { mkdirSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

export const need = createRequire(`${process.env.SLIPFORM_NODE}/`);

const unpacked = join(process.env.SLIPFORM_NODE, 'browser');

// Chromium unpacks itself into the folder for temporary files, where processes that start together write over each
// other. `make` unpacks it once, beside the packages.
export async function unpack() {
  mkdirSync(unpacked, { recursive: true });
  const chromium = (await import(need.resolve('@sparticuz/chromium'))).default;
  const temporary = process.env.TMPDIR;
  process.env.TMPDIR = unpacked;
  try {
    return { args: chromium.args, executablePath: await chromium.executablePath() };
  } finally {
    if (temporary === undefined) delete process.env.TMPDIR;
    else process.env.TMPDIR = temporary;
  }
}

export async function launch() {
  const chromium = await unpack();
  const puppeteer = (await import(need.resolve('puppeteer-core'))).default;
  const folder = join(tmpdir(), 'slipform-fonts');
  mkdirSync(folder, { recursive: true });
  const file = join(folder, 'fonts.conf');
  const prefer = ['sans-serif', 'system-ui', '-apple-system', 'Segoe UI'].map((name) => `<match target="pattern"><test name="family"><string>${name}</string></test><edit name="family" mode="prepend" binding="strong"><string>Open Sans</string></edit></match>`).join('');
  writeFileSync(file, `<?xml version="1.0"?><!DOCTYPE fontconfig SYSTEM "fonts.dtd"><fontconfig><dir>${join(unpacked, 'fonts')}</dir><dir>/usr/share/fonts</dir><cachedir>${folder}</cachedir>${prefer}</fontconfig>`);
  // Its own flags draw with a graphics card made of software, which takes more time than no card at all. Over a pipe the
  // browser ends with whoever started it, even one that was killed.
  const unwanted = /^--(disable-web-security|single-process|no-zygote|use-gl|use-angle|enable-unsafe-swiftshader|ignore-gpu-blocklist|in-process-gpu)/;
  return puppeteer.launch({
    args: chromium.args.filter((each) => !unwanted.test(each)).concat('--no-sandbox', '--disable-gpu'),
    executablePath: chromium.executablePath, headless: 'shell', pipe: true, env: { ...process.env, FONTCONFIG_FILE: file },
  });
}
