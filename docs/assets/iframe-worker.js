// Browsers give no workers to pages that were opened from disk, and the search is a worker. There, its script runs in a hidden frame instead.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(address) {
      super();
      const base = new URL(address, location.href);
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      const inner = frame.contentWindow;
      const run = (source) => new Promise((done, failed) => {
        const script = frame.contentDocument.createElement("script");
        script.src = new URL(source, base);
        script.onload = done;
        script.onerror = failed;
        frame.contentDocument.body.append(script);
      });
      inner.importScripts = (...sources) => sources.reduce((before, source) => before.then(() => run(source)), Promise.resolve());
      inner.postMessage = (data) => {
        const event = new MessageEvent("message", { data });
        this.dispatchEvent(event);
        this.onmessage?.(event);
      };
      this.frame = frame;
      this.ready = run(base);
    }
    postMessage(data) {
      this.ready.then(() => {
        const event = new MessageEvent("message", { data });
        const inner = this.frame.contentWindow;
        inner.dispatchEvent(event);
      });
    }
    terminate() { this.frame.remove(); }
  };
}
