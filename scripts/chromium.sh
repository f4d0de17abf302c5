#!/bin/sh
# Installs Debian's Chromium, which the tests of the page drive: make browser.
set -eu
if command -v chromium >/dev/null && command -v chromedriver >/dev/null; then
    exit 0
fi
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "As root on Debian, run: apt-get install chromium chromium-driver fonts-dejavu-core" >&2
    exit 1
fi
export DEBIAN_FRONTEND=noninteractive
apt-get -qq update >/dev/null
apt-get -qq install -y --no-install-recommends chromium chromium-driver fonts-dejavu-core >/dev/null
