# A thin front end of the CMake build. `make help` lists the targets.
# BUILD: folder of all builds. PREFIX, DESTDIR: where `make install` installs. JOBS: parallel jobs.
# ARGS: options of `make bench`, bench-gpu, test-gpu and test-python. IMAGES: a folder with images of the CUDA kernels
# that another build made, for test-gpu and bench-gpu. ARCHS: the GPUs of `make wheel`. Folders may have spaces in their
# names.
BUILD   = build
PREFIX  = /usr/local
ARCHS   = all
JOBS   := $(shell nproc 2>/dev/null || echo 2)
FOREIGN := $(if $(filter aarch64 arm64,$(shell uname -m)),qemu-x86_64,qemu-aarch64)
DEEP    = dev asan tsan $(FOREIGN) fuzz
CTEST   = ctest --output-on-failure --no-label-summary -j $(JOBS)

# A text as one word of the shell.
quote  = '$(subst ','\'',$(1))'
build  = $(call quote,$(BUILD))
prefix = $(call quote,$(if $(filter /%,$(firstword $(PREFIX))),,$(CURDIR)/)$(PREFIX))

.NOTPARALLEL:
.PHONY: help demo test test-all test-deep test-gpu test-python wheel bench bench-gpu accuracy lint format install \
	uninstall clean

help:
	@echo 'make demo        build, then show the worked example, every variable of it'
	@echo 'make test        build, then run the tests'
	@echo 'make test-deep   sanitizers, fuzzing for 60 s per target, valgrind, memory, foreign processors'
	@echo 'make test-all    tests that are too long for make test: all problems on the emulated CUDA kernels,'
	@echo '                 300 problems over processes, all problems over the ranks of MPI'
	@echo 'make test-gpu    the CUDA backend on the NVIDIA GPU that is here; ARGS: see scripts/test-gpu; IMAGES: of another build'
	@echo 'make test-python build the Python package, install it, run its tests; ARGS: options of pytest'
	@echo 'make wheel       the Python wheel for other machines, with the CUDA backend, into $(build)/wheel; needs nvcc, no GPU;'
	@echo '                 ARCHS=80,90: for these GPUs alone; ARCHS=none: without CUDA, and without nvcc'
	@echo 'make bench       our maps, layer and products against PyTorch and oneDNN, under 30 minutes; ARGS=--quick: 5'
	@echo 'make bench-gpu   the CUDA backend against PyTorch, into $(build)/gpu; ARGS: --all, --table T, --rows GROUPS, --list'
	@echo 'make accuracy    errors of the 16-bit maps in 216 settings, against PyTorch; 3 minutes; ARGS=--quick: 20 seconds'
	@echo 'make lint        format, static analysis, layering'
	@echo 'make format      rewrite the sources in the format that lint wants'
	@echo 'make install     into PREFIX (now '$(prefix)'), below DESTDIR'
	@echo 'make uninstall   remove what the last make install put in place'
	@echo 'make clean       remove '$(build)'/'
	@echo 'Each installs what it needs if that is missing (Debian, Ubuntu); demo, install and bench do without jansson'
	@echo 'if it cannot be installed: the command is then built without what reads and writes files.'

demo:
	@scripts/setup demo
	@scripts/build release $(build) $(JOBS)
	@$(build)/release/cli/attngrad demo

test:
	@scripts/setup test
	@cuda=$$(scripts/cuda-option) && scripts/timed 'build dev' scripts/build dev $(build) $(JOBS) $$cuda
	@$(CTEST) --test-dir $(build)/dev
	@scripts/test-minutes $(build)/dev

test-all:
	@scripts/setup test
	@cuda=$$(scripts/cuda-option) && scripts/timed 'build dev' scripts/build dev $(build) $(JOBS) $$cuda
	@$(CTEST) -C all -L all --test-dir $(build)/dev
	@ATTNGRAD_RING_PROBLEMS=300 python/test $(build)/python -k 'ring and random'

test-gpu:
	@scripts/test-gpu $(build) $(JOBS) $(call quote,$(IMAGES)) $(ARGS)

# One ctest run over all builds, so that it ends in one summary. Of dev it runs the tests that have a prefix.
test-deep:
	@scripts/setup test-deep
	@for preset in $(DEEP); do scripts/timed "build $$preset" scripts/build $$preset $(build) $(JOBS) || exit 1; done
	@mkdir -p $(build)/deep
	@folder=$$(cd $(build) && pwd) && for preset in $(DEEP); do \
		echo "subdirs(\"$$folder/$$preset\")"; done >$(build)/deep/CTestTestfile.cmake
	@$(CTEST) -C deep -L deep --test-dir $(build)/deep
	@scripts/test-minutes $(build)/deep

test-python:
	@scripts/setup test-python
	@python/test $(build)/python $(ARGS)

wheel:
	@scripts/setup wheel
	@scripts/wheel $(build)/wheel $(JOBS) $(call quote,$(ARCHS))

bench:
	@scripts/setup bench
	@scripts/build release $(build) $(JOBS)
	@cmake --build $(build)/release --target attngrad_probe
	@bench/run $(build)/release $(ARGS)

bench-gpu:
	@scripts/test-gpu $(build) $(JOBS) $(call quote,$(IMAGES)) --build --part python
	@python3 bench/gpu.py $(build)/gpu $(ARGS)

accuracy:
	@scripts/setup bench
	@scripts/build release $(build) $(JOBS)
	@python=$$(scripts/venv) && PYTHONDONTWRITEBYTECODE=1 "$$python" bench/accuracy.py $(build)/release $(ARGS)

lint:
	@scripts/setup lint
	@scripts/lint

format:
	@scripts/setup lint
	@scripts/lint --fix-format

install:
	@scripts/setup demo
	@scripts/build release $(build) $(JOBS) -DCMAKE_INSTALL_PREFIX=$(prefix)
	@scripts/install $(build)/release $(prefix) $(call quote,$(DESTDIR))

uninstall:
	@scripts/uninstall $(build)/release

clean:
	rm -rf $(build)
