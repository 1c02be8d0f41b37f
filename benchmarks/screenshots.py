"""Take the screenshots of the explorer in docs/images, light and dark.

    nnnorm explore --no-browser &            # the demo, on port 8765
    python benchmarks/screenshots.py

Needs Chromium and playwright.
"""

import io
import shutil
import sys
from pathlib import Path

from PIL import Image

IMAGES = Path(__file__).resolve().parents[1] / "docs" / "images"
ADDRESS = "http://127.0.0.1:8765/"
SIZE = {"width": 1280, "height": 980}
# The part of the page that shows that a view is ready.
VIEWS = {"search": "#after li", "hubs": "tr.chosen .pill", "map": "#selection h2"}
# A lasso around the worst hub of the demo, as shares of the map's width and height.
LASSO = ((0.66, 0.7), (0.9, 0.66), (0.92, 0.9), (0.7, 0.95), (0.66, 0.7))


def main() -> int:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as opened:
        chromium = opened.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        for scheme, end in (("light", ""), ("dark", "-dark")):
            page = chromium.new_page(viewport=SIZE, color_scheme=scheme, reduced_motion="reduce")
            for view, ready in VIEWS.items():
                page.goto(f"{ADDRESS}#{view}")
                page.reload()
                page.wait_for_selector(ready, timeout=120_000)
                if view == "map":
                    draw_lasso(page)
                page.wait_for_load_state("networkidle")
                page.wait_for_timeout(1500)  # pictures and the map are drawn
                path = IMAGES / f"explore-{view}{end}.png"
                shot = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
                # This method of Pillow keeps both rare hues and large areas.
                small = shot.quantize(256, method=Image.Quantize.MAXCOVERAGE, kmeans=5, dither=0)
                small.save(path, optimize=True)
                print(f"{path}: {path.stat().st_size // 1000} kB")
            page.close()
        chromium.close()
    return 0


def draw_lasso(page) -> None:
    page.click("#lasso")
    box = page.locator("#plane canvas").bounding_box()
    at = [(box["x"] + x * box["width"], box["y"] + y * box["height"]) for x, y in LASSO]
    page.mouse.move(*at[0])
    page.mouse.down()
    for point in at[1:]:
        page.mouse.move(*point, steps=10)
    page.mouse.up()


if __name__ == "__main__":
    sys.exit(main())
