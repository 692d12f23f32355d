# A thin front end of the CMake build. `make help` lists the targets.
# BUILD: folder of all builds. PREFIX, DESTDIR: where `make install` installs. JOBS: parallel jobs.
# ARGS: options of `make bench` and of `make test-python`.
BUILD   = build
PREFIX  = /usr/local
JOBS   := $(shell nproc 2>/dev/null || echo 2)
DEEP    = dev asan tsan qemu-aarch64 fuzz
CTEST   = ctest --output-on-failure --no-label-summary -j $(JOBS)

.NOTPARALLEL:
.PHONY: help demo test test-deep test-python bench lint format install clean

help:
	@echo 'make demo        build, then show the worked example, every variable of it'
	@echo 'make test        build, then run the tests'
	@echo 'make test-deep   sanitizers, fuzzing for 60 s per target, valgrind, memory, foreign processors'
	@echo 'make test-python build the Python package, install it, run its tests; ARGS: options of pytest'
	@echo 'make bench       our maps, layer and products against PyTorch and oneDNN, under 30 minutes; ARGS=--quick: 5'
	@echo 'make lint        format, static analysis, layering'
	@echo 'make format      rewrite the sources in the format that lint wants'
	@echo 'make install     into PREFIX (now $(PREFIX)), below DESTDIR'
	@echo 'make clean       remove $(BUILD)/'
	@echo 'Each installs what it needs if that is missing (Debian, Ubuntu); demo, install and bench do without jansson'
	@echo 'if it cannot be installed: the command is then built without what reads and writes files.'

demo:
	@scripts/setup demo
	@scripts/build release $(BUILD) $(JOBS)
	@$(BUILD)/release/cli/attngrad demo

test:
	@scripts/setup test
	@scripts/timed 'build dev' scripts/build dev $(BUILD) $(JOBS)
	@$(CTEST) --test-dir $(BUILD)/dev
	@scripts/test-minutes $(BUILD)/dev

# One ctest run over all builds, so that it ends in one summary. Of dev it runs the tests that have a prefix.
test-deep:
	@scripts/setup test-deep
	@for preset in $(DEEP); do scripts/timed "build $$preset" scripts/build $$preset $(BUILD) $(JOBS) || exit 1; done
	@mkdir -p $(BUILD)/deep
	@for preset in $(DEEP); do echo "subdirs(\"$(abspath $(BUILD))/$$preset\")"; done >$(BUILD)/deep/CTestTestfile.cmake
	@$(CTEST) -C deep -L deep --test-dir $(BUILD)/deep
	@scripts/test-minutes $(BUILD)/deep

test-python:
	@scripts/setup test-python
	@python/test $(BUILD)/python $(ARGS)

bench:
	@scripts/setup bench
	@scripts/build release $(BUILD) $(JOBS)
	@cmake --build $(BUILD)/release --target attngrad_probe
	@bench/run $(BUILD)/release $(ARGS)

lint:
	@scripts/setup lint
	@scripts/lint

format:
	@scripts/setup lint
	@scripts/lint --fix-format

install:
	@scripts/setup demo
	@scripts/build release $(BUILD) $(JOBS) -DCMAKE_INSTALL_PREFIX=$(abspath $(PREFIX))
	@DESTDIR=$(DESTDIR) cmake --install $(BUILD)/release

clean:
	rm -rf $(BUILD)
