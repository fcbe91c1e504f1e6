#!/bin/sh
# Remove files from a site-packages folder that a server on a CPU never opens. Dockerfile.cpu runs it.
# strip.sh FOLDER. tests/deploy/test_files.py shows that the rest can serve.
set -eu
cd "$1"

# OpenVINO reads vectord's graphs and ONNX, and runs them on CPUs.
for part in intel_gpu_plugin intel_npu_plugin auto_batch_plugin auto_plugin hetero_plugin \
  gguf_frontend jax_frontend paddle_frontend pytorch_frontend tensorflow_frontend tensorflow_lite_frontend; do
  rm -f openvino/libs/libopenvino_"$part".so*
done
rm -f openvino/libs/cache.json openvino/libs/libopenvino_c.so* # compiled kernels of the GPU plugin; the C interface
rm -rf openvino/include openvino/cmake openvino/tools openvino/torch openvino/frontend/pytorch \
  openvino/frontend/tensorflow openvino/frontend/jax

# Files for developers and tests of the libraries.
rm -rf numpy/f2py numpy/distutils numpy/_pyinstaller numpy/typing/tests huggingface_hub/templates zstandard/_cffi*
find . -type d \( -name tests -o -name include -o -name includes \) -prune -exec rm -rf {} +
find . -type f \( -name '*.pyi' -o -name '*.pyx' -o -name '*.pxd' -o -name '*.h' -o -name '*.c' -o -name '*.a' \) -delete

# Debug symbols, up to 90 % of a library. Not numpy's: its patched libraries would break.
for package in grpc hf_xet httptools tokenizers uvloop zstandard; do
  [ ! -d "$package" ] || find "$package" -name '*.so' -exec strip --strip-unneeded {} +
done
