"""Whether pages of the site are wider than their window, in headless Chromium: python tools/browser_check.py [--shots FOLDER]

Every page of build/docs is loaded at 400 and at 1400 pixels, light and dark; a page whose content is wider than the window is
named with the elements that stand out. With --shots, pictures of some pages are written, to be looked at."""

from __future__ import annotations

import argparse
import json
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
WIDTHS, THEMES = (400, 1400), ("light", "dark")
MARGIN = 8  # pixels by which the theme's own margins stand out on every page
SHOWN = ("index", "tutorial", "sharding", "design/life", "reference/statistics", "reference/gt_nn")
NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
HARNESS = """<!doctype html><title>measuring</title><script>
async function measure(pages, widths, themes) {
  const found = [];
  for (const theme of themes) {
    localStorage.setItem("theme", theme);
    for (const width of widths) for (const page of pages) {
      const frame = document.createElement("iframe");
      frame.style.cssText = `width:${width}px;height:900px;border:0`;
      frame.src = page;
      document.body.append(frame);
      await new Promise(done => frame.onload = done);
      const root = frame.contentDocument.documentElement;
      const inner = "body, .page, .main, .content, .article-container, article";
      const frames = [root, ...frame.contentDocument.querySelectorAll(inner)];
      const over = Math.max(...frames.map(e => e.scrollWidth - e.clientWidth));
      const wide = over > 0 ? [...frame.contentDocument.querySelectorAll("article *")]
        .filter(e => e.getBoundingClientRect().right > root.clientWidth + 1).slice(0, 4)
        .map(e => `${e.tagName.toLowerCase()} ${e.textContent.trim().slice(0, 40)}`) : [];
      found.push({page, width, theme, over, dark: frame.contentDocument.body.dataset.theme, wide});
      frame.remove();
    }
  }
  await fetch("/found", {method: "POST", body: JSON.stringify(found)});
}
window.onload = () => measure(%PAGES%, %WIDTHS%, %THEMES%);
</script><body></body>"""


class Handler(SimpleHTTPRequestHandler):
    """The site, the page that measures it at /measure, and the place for its findings."""

    def __init__(self, *args: Any, harness: str, found: queue.Queue[str], **more: Any) -> None:
        self.harness, self.found = harness, found
        super().__init__(*args, **more)

    def do_GET(self) -> None:
        if self.path != "/measure":
            return super().do_GET()
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(self.harness.encode())
        return None

    def do_POST(self) -> None:
        self.found.put(self.rfile.read(int(self.headers["Content-Length"])).decode())
        self.send_response(204)
        self.end_headers()

    def log_message(self, *args: Any) -> None:
        """Nobody reads it."""


def chromium() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name))), None)


def measure(site: Path, seconds: float = 600.0) -> list[dict[str, Any]]:
    """For each page, width and theme, by how many pixels the page is wider than its window."""
    pages = sorted(str(p.relative_to(site)) for p in site.rglob("*.html") if p.name not in ("genindex.html", "search.html"))
    harness = HARNESS.replace("%PAGES%", json.dumps(pages)).replace("%WIDTHS%", json.dumps(WIDTHS))
    found: queue.Queue[str] = queue.Queue()
    handler = partial(Handler, harness=harness.replace("%THEMES%", json.dumps(THEMES)), found=found, directory=str(site))
    browser = chromium()
    assert browser is not None, f"no browser is installed: looked for {', '.join(NAMES)}"
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server, tempfile.TemporaryDirectory() as profile:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        command = [browser, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}",
                   "--window-size=1500,1000",
                   "--remote-debugging-port=0", f"http://127.0.0.1:{server.server_address[1]}/measure"]  # fmt: skip
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            return json.loads(found.get(timeout=seconds))
        finally:
            process.terminate()
            process.wait()
            server.shutdown()


def shoot(site: Path, folder: Path) -> None:
    """Pictures of some pages."""
    folder.mkdir(parents=True, exist_ok=True)
    for page in SHOWN:
        for width in WIDTHS:
            for theme in THEMES:
                name = folder / f"{page.replace('/', '-')}-{width}-{theme}.png"
                options = ["--force-dark-mode", "--blink-settings=preferredColorScheme=0"] if theme == "dark" else []
                command = [str(chromium()), "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", *options,
                           f"--window-size={width},1000", f"--screenshot={name}", (site / f"{page}.html").as_uri()]  # fmt: skip
                subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def main() -> int:
    p = argparse.ArgumentParser(description="Measure whether pages of the site are wider than their window.")
    p.add_argument("--site", type=Path, default=ROOT / "build" / "docs", help="the built site (build/docs)")
    p.add_argument("--shots", type=Path, help="write pictures of some pages into this folder")
    args = p.parse_args()
    if args.shots:
        shoot(args.site, args.shots)
    found = measure(args.site)
    wide = [f for f in found if f["over"] > MARGIN]
    for f in wide:
        print(f"{f['page']} at {f['width']} pixels, {f['theme']}: {f['over']} pixels too wide: {'; '.join(f['wide'])}")
    print(f"{len(found)} measured, {len(wide)} too wide")
    return 1 if wide else 0


if __name__ == "__main__":
    sys.exit(main())
