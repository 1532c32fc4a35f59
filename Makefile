# Two commands do everything on a fresh machine with Python 3.11 and make:
#   make demo    sets up, trains MNIST on nine engines, shows the leader board, writes the report
#   make test    sets up, runs the whole test suite

PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
STAMP := .venv/.set-up
CLASSES := .venv/.spark-classes
PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check
JAVA := $(BIN)/python -c 'from trainoff.clusters.java import find_java; java = find_java(); raise SystemExit(not java or bool(java.lacks))'

# Two set-ups at the same time take turns; the timeouts keep one that hangs from blocking the other for ever.
APT := flock --timeout 600 /var/lib/apt apt-get -qq -o DPkg::Lock::Timeout=600

# torch with CUDA has gigabytes that a machine without a GPU cannot use. If no GPU is found and pip has no other source,
# PyTorch's index of CPU builds is tried first, if it can be reached. TORCH_INDEX= turns that off.
TORCH_INDEX ?= $(shell test -n "$$PIP_FIND_LINKS" || command -v nvidia-smi >/dev/null 2>&1 || \
    $(PYTHON) -c 'import urllib.request as r; u = "https://download.pytorch.org/whl/cpu"; r.urlopen(u + "/torch/", timeout=10); print(u)' 2>/dev/null)

TORCH := $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))
# pip finds its own settings; uv gets those that it may need.
UV := $(BIN)/uv pip install --quiet --python $(BIN)/python $(if $(PIP_FIND_LINKS),--find-links "$(PIP_FIND_LINKS)") \
    $(if $(TORCH),$(TORCH) --index-strategy unsafe-best-match)

# Without cached bytecode every process of every trial would compile all modules again.
unexport PYTHONDONTWRITEBYTECODE
# Large modules are imported once beforehand, so that compiling them is not part of the first trial's time.
COMPILED := tensorflow torch.distributed.run,torch.nn.parallel,jax,sklearn.neural_network,distributed,ray.train.torch,pyspark.sql

.PHONY: demo test check checked ready lint soak conditions bench reproduced picture clean lock setup browser sshd

demo: $(STAMP)
	@if $(BIN)/trainoff data get mnist; then \
	    $(BIN)/trainoff run studies/quick.toml; code=$$?; $(BIN)/trainoff report results/quick; exit $$code; \
	else \
	    echo "Continuing with the small digits dataset, which needs no download."; \
	    $(BIN)/trainoff run studies/quick.toml --set workload=digits-mlp --set name=quick-digits; code=$$?; \
	    $(BIN)/trainoff report results/quick-digits; exit $$code; \
	fi

# make test ORDER=random takes the files in random order instead of the slowest first; within a file the order is always
# random, from the seed that pytest prints. SEED=123 repeats an order.
# Libraries use one thread, because several processes share the CPUs.
SEED ?= default
PYTEST := TRAINOFF_TEST_ORDER=$(ORDER) OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -p randomly --randomly-seed=$(SEED) --dist loadfile --no-loadscope-reorder

test: $(STAMP)
	@$(MAKE) --no-print-directory --output-sync --jobs 2 ready
	@$(PYTEST) -m "not soak" --numprocesses 3

# Lint, types, and all tests that start no cluster: a minute and a half on two fast cores. XLA compiles a hundred tiny
# trainings, here without optimisation; `make test` compiles them with it.
check: $(STAMP)
	@$(MAKE) --no-print-directory --output-sync --jobs 2 lint checked

checked: $(STAMP) browser
	@XLA_FLAGS=--xla_backend_optimization_level=0 $(PYTEST) -m "not soak and not cluster" --numprocesses 3

# What the tests need before they start.
ready: $(CLASSES) sshd

lint: $(STAMP)
	@$(BIN)/ruff check src tests benchmarks
	@$(BIN)/ruff format --check --quiet src tests benchmarks
	@$(BIN)/mypy

# `make check` under conditions that must not matter, and everything of which `make test` runs a sample. Three hours.
soak: $(STAMP) $(CLASSES)
	@$(BIN)/python tests/conditions.py check
	@TRAINOFF_EXPLORE=yes $(BIN)/python -m pytest tests/analysis/test_scaling.py tests/study/test_properties.py tests/engines/test_tf_on_spark_parts.py
	@$(BIN)/python -m pytest tests/runner/test_kill.py tests/engines/test_tf_cluster.py
	@$(BIN)/python -m pytest -m soak --ignore tests/runner/test_kill.py --ignore tests/engines/test_tf_cluster.py

# make test unchanged, and in random orders on one core, on a busy machine, and twice at once. An hour and a half.
conditions: $(STAMP)
	@$(BIN)/python tests/conditions.py

# The benchmarks; the first lines of each file say what it measures. They need an idle machine and three hours.
bench: $(STAMP)
	@$(BIN)/python benchmarks/overhead.py || test $$? = 2   # 2: it cannot decide, which does not end the benchmarks
	@$(BIN)/python benchmarks/adapters.py
	@$(BIN)/python benchmarks/bound.py
	@$(BIN)/python benchmarks/table.py
	@$(BIN)/python benchmarks/report.py
	@$(BIN)/python benchmarks/spark.py
	@$(BIN)/python benchmarks/servers.py
	@$(BIN)/python benchmarks/tf_on_spark.py
	@$(BIN)/python benchmarks/torch_ddp.py
	@$(BIN)/python benchmarks/spark_vs_dask.py
	@$(BIN)/python benchmarks/lab.py
	@$(BIN)/python benchmarks/kill.py
	@$(BIN)/python benchmarks/scaling.py
	@$(BIN)/python benchmarks/advice.py
	@$(BIN)/python benchmarks/tune.py

# Run the published studies again, one after the other, and write their pages in docs/reproduced. An hour.
REPRODUCED := $(notdir $(wildcard src/trainoff/reproductions/studies/*))
reproduced: $(STAMP)
	@for name in $(REPRODUCED); do $(BIN)/trainoff reproduce $$name --page docs/reproduced/$$name.md || exit 1; done

# The picture in the README: the report of `make demo`, as Chromium shows it.
picture: $(STAMP) browser
	@$(BIN)/trainoff report results/quick
	@$(BIN)/python docs/picture.py results/quick/report.html docs/report.png

# The tests of the report use a real browser.
browser:
	@command -v chromium >/dev/null || if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    echo "Installing Chromium for the tests of the report ..."; \
	    $(APT) update && $(APT) install -y chromium >/dev/null || echo "Chromium could not be installed; tests that need it are skipped."; \
	else echo "The tests of the report need Chromium: apt-get install chromium"; fi

# The tests of hosts start an ssh server in a network namespace. It is unpacked and not installed: an installed one would
# let others log in to this machine.
sshd: | browser
	@PATH="$$PATH:/usr/sbin" command -v sshd >/dev/null || test -x build/openssh/usr/sbin/sshd || if command -v apt-get >/dev/null; then \
	    echo "Unpacking an OpenSSH server for the tests of hosts ..."; \
	    mkdir -p build/openssh/packages; cd build/openssh/packages; fetch="apt-get -qq download openssh-server libwrap0"; \
	    { $$fetch || { $(APT) update && $$fetch; }; } 2>/dev/null && for each in *.deb; do dpkg -x "$$each" ..; done \
	    || echo "It could not be fetched; tests that need it are skipped."; \
	else echo "The tests of hosts need sshd, OpenSSH's server."; fi

setup: $(STAMP)

$(STAMP): pyproject.toml requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "trainoff needs Python 3.11 or later; this is " + sys.version.split()[0] + ". Name another: make PYTHON=/path/to/python3.11")'
	@echo "Setting up .venv (a minute or two the first time: TensorFlow, PyTorch, JAX, Spark, Dask and Ray come along) ..."
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv || { echo "venv failed; on Debian: apt-get install python3-venv"; exit 1; }
	@$(PIP) "$$(grep '^uv==' requirements.lock)" && $(UV) --requirement requirements.lock || { \
	    echo "uv could not install it all; pip tries again, and takes longer ..."; \
	    $(PIP) $(TORCH) --requirement requirements.lock; }
	@$(PIP) --no-deps --no-build-isolation --editable .
	@for modules in $(COMPILED); do $(BIN)/python -c "import $$modules" 2>/dev/null & done; \
	    $(BIN)/python -c "from trainoff.report.html import library; library()" & wait
	@$(JAVA) || if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    echo "Installing Java for the engines on Spark ..."; \
	    $(APT) update && { $(APT) install -y openjdk-17-jre-headless || $(APT) install -y default-jre-headless; } >/dev/null; \
	    $(JAVA) || echo "Java could not be installed; the engines on Spark will say so."; \
	else echo "The engines on Spark need Java 17: apt-get install openjdk-17-jre-headless"; fi
	@touch $(STAMP)

# The tests start twenty Spark clusters; shared classes halve the time of each.
$(CLASSES): requirements.lock | $(STAMP)
	@echo "Preparing classes that Spark's JVMs share ..."
	@$(BIN)/python -m trainoff.clusters.java || echo "Without them Spark starts more slowly."
	@touch $(CLASSES)

# Pin every version that pyproject.toml leads to, and keep pinned ones that still fit; delete the file to take newer
# ones. torch's CUDA libraries are left out: pip installs them where a build of torch needs them.
lock: $(STAMP)
	@printf 'torch==2.13.0\nsetuptools==79.0.1\nwheel\n' | $(BIN)/uv pip compile --quiet --all-extras --no-header --no-annotate \
	    --output-file requirements.lock pyproject.toml -
	@{ echo "# Every version that trainoff is tested with; \`make lock\` renews it."; \
	    grep -v -E '^(cuda-|nvidia-|triton)' requirements.lock; } > requirements.lock.new && mv requirements.lock.new requirements.lock

clean:
	rm -rf .venv build results .pytest_cache .mypy_cache .ruff_cache .hypothesis src/*.egg-info
