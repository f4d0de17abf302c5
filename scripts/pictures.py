"""Make the pictures of the documentation: what leapp writes, photographed in Debian's Chromium.

Needs ``make browser``; writes ``docs/images``.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from PIL import Image
from selenium import webdriver

REPOSITORY = Path(__file__).resolve().parents[1]
IMAGES = REPOSITORY / "docs" / "images"
FLAGS = ("headless", "no-sandbox", "disable-gpu", "disable-dev-shm-usage", "no-first-run", "hide-scrollbars")


def photograph(browser: webdriver.Chrome, address: str, name: str, width: int = 1280, height: int = 720) -> None:
    """One window, with few colours, so that the file is small."""
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    still = [{"name": "prefers-color-scheme", "value": "light"}, {"name": "prefers-reduced-motion", "value": "reduce"}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": still})
    browser.get(address)
    time.sleep(1)
    browser.save_screenshot(str(IMAGES / name))
    Image.open(IMAGES / name).convert("RGB").quantize(64, dither=Image.Dither.NONE).save(IMAGES / name, optimize=True)


def main() -> None:
    """Export the demo and the guide's program; photograph the page, take the picture."""
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as directory:
        subprocess.run([sys.executable, str(REPOSITORY / "examples" / "quadruped_demo.py"), directory], check=True)
        bundle = Path(directory, "quadruped")
        guide = (REPOSITORY / "docs" / "getting_started.md").read_text()
        program = "\n".join(re.findall(r"```python\n(.*?)```", guide, re.DOTALL))
        program += "\nopen('report.html', 'w').write('<body style=font-family:sans-serif>' + leapp.report()._repr_html_())"
        subprocess.run([sys.executable, "-c", program], check=True, cwd=directory)
        shutil.copyfile(Path(directory, "exports", "robot", "robot.svg"), IMAGES / "robot.svg")
        options = webdriver.ChromeOptions()
        options.binary_location = shutil.which("chromium") or "chromium"
        for flag in (*FLAGS, f"user-data-dir={directory}/profile"):
            options.add_argument(f"--{flag}")
        browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
        try:
            photograph(browser, f"{(bundle / 'quadruped.html').as_uri()}#policy", "page.png")
            photograph(browser, Path(directory, "report.html").as_uri(), "notebook.png", 800, 720)
        finally:
            browser.quit()


if __name__ == "__main__":
    main()
