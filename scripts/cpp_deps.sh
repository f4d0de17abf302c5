#!/bin/sh
# Brings what the C++ tests stand on into a directory: headers and libraries of ONNX Runtime, OpenVINO and libyaml.
#
#   sh scripts/cpp_deps.sh DIRECTORY PYTHON
#
# The library of ONNX Runtime is the one of PYTHON's own onnxruntime package, so that both runtimes run the same code. Its headers
# come from npm's @qvac/onnx (Apache-2.0), OpenVINO from PyPI, libyaml from Debian where the machine has no libyaml-dev.
set -eu
target=$1
python=$(cd "$(dirname "$2")" && pwd)/$(basename "$2")
headers=@qvac/onnx@0.15.1
openvino=openvino==2026.4.1
mkdir -p "$target"
cd "$target"

if ! test -f onnxruntime/include/onnxruntime_c_api.h; then
    archive=$(npm pack --silent "$headers")
    mkdir -p onnxruntime
    tar xzf "$archive" package/prebuilds/include/onnxruntime
    rm -rf onnxruntime/include "$archive"
    mv package/prebuilds/include/onnxruntime onnxruntime/include
    rm -r package
fi

library=$("$python" -c "import glob, onnxruntime, os
(found,) = glob.glob(os.path.dirname(onnxruntime.__file__) + '/capi/libonnxruntime.so.*')
print(found)")
mkdir -p onnxruntime/lib
ln -sfn "$library" onnxruntime/lib/libonnxruntime.so
ln -sfn "$library" onnxruntime/lib/libonnxruntime.so.1

if ! test -d openvino/cmake; then
    "$python" -m pip install --quiet --disable-pip-version-check --no-deps --target openvino-package "$openvino"
    mv openvino-package/openvino openvino
    rm -r openvino-package
fi

if ! test -f /usr/include/yaml.h && ! test -f yaml/usr/include/yaml.h; then
    apt-get download -qq libyaml-dev libyaml-0-2 || { apt-get update -qq; apt-get download -qq libyaml-dev libyaml-0-2; }
    for package in libyaml-*.deb; do dpkg -x "$package" yaml; done
    rm libyaml-*.deb
fi
