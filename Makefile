# Two commands on a fresh machine: `make train` and `make test`. Each sets everything up first.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
SEARCHERS := .venv/.searchers
RLLIB := .venvs/rllib-tests
RLLIB_TESTS := not long
RAY_SERVE := .venvs/ray-serve-tests
LOGGERS := .venvs/loggers-tests
DM_CONTROL := .venvs/dm-control-tests
TIANSHOU := .venvs/tianshou-tests
OLD_GYM := .venvs/old-gym-tests
BENCH := .venvs/bench

.PHONY: setup train test test-slow test-rllib test-ray-serve test-loggers test-dm-control test-tianshou test-old-gym test-versions test-long test-all lint format man dist docs bench bench-quick clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $(STAMP)

train: setup
	$(BIN)/shoal train CartPole-v1

test: setup
	$(BIN)/python -m pytest -n 3 --dist worksteal -m 'not slow' --durations 60

# What `make test` leaves out: the rest of the cluster's tests, every searcher, the longer trainings.
test-slow: $(SEARCHERS)
	$(BIN)/python -m pytest -n 3 --dist worksteal -m 'slow and not long' --durations 60
	$(MAKE) test-rllib
	$(MAKE) test-ray-serve
	$(MAKE) test-loggers
	$(MAKE) test-dm-control
	$(MAKE) test-tianshou
	$(MAKE) test-old-gym

# What is too long for every change.
test-long: $(SEARCHERS)
	$(BIN)/python -m pytest -n 3 --dist worksteal -m long --durations 60
	$(MAKE) test-rllib RLLIB_TESTS=long

# RLlib pins gymnasium, so its tests have an environment of their own; where that cannot be made, they are left out.
test-rllib: $(RLLIB)/.installed
	test ! -x $(RLLIB)/bin/pytest || PYTHONPATH=src $(RLLIB)/bin/python -m pytest -p no:cacheprovider tests/rllib -m '$(RLLIB_TESTS)' --durations 20

# torch comes first and alone: a resolver that meets it late has fetched other versions of it by then.
$(RLLIB)/.installed: tests/rllib/requirements.txt
	$(PYTHON) -m venv --clear $(RLLIB)
	$(RLLIB)/bin/python -m pip install --quiet --disable-pip-version-check $$(head -n 1 $<) \
		&& $(RLLIB)/bin/python -m pip install --quiet --disable-pip-version-check --requirement $< \
		|| echo "RLlib cannot be installed here: its tests are left out"
	touch $@

# Ray Serve brings what changes Ray itself (its dashboard runs wherever aiohttp is), so it has an environment of its own too.
test-ray-serve: $(RAY_SERVE)/.installed
	test ! -x $(RAY_SERVE)/bin/pytest || $(RAY_SERVE)/bin/python -m pytest -p no:cacheprovider tests/features/test_serving_on_ray.py

$(RAY_SERVE)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv --clear $(RAY_SERVE)
	$(RAY_SERVE)/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt \
		--editable '.[ray-serve]' pytest pytest-timeout \
		|| echo "Ray Serve cannot be installed here: its test is left out"
	touch $@

# wandb, mlflow and trackio bring eighty packages, and trackio an older pillow than the others take: the real ones, without a network.
test-loggers: $(LOGGERS)/.installed
	test ! -x $(LOGGERS)/bin/pytest || $(LOGGERS)/bin/python -m pytest -p no:cacheprovider tests/unit/runs/test_loggers.py -k real_library

$(LOGGERS)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv --clear $(LOGGERS)
	grep -v '^pillow==' constraints.txt > $(LOGGERS)/constraints.txt
	$(LOGGERS)/bin/python -m pip install --quiet --disable-pip-version-check --constraint $(LOGGERS)/constraints.txt \
		--editable '.[wandb,mlflow,trackio]' pytest pytest-timeout \
		|| echo "The loggers' libraries cannot be installed here: their tests are left out"
	touch $@

# dm_control wants an older MuJoCo than Gymnasium's environments have.
test-dm-control: $(DM_CONTROL)/.installed
	test ! -x $(DM_CONTROL)/bin/pytest || $(DM_CONTROL)/bin/python -m pytest -p no:cacheprovider tests/docs/test_doors_pages.py -k dm_control

$(DM_CONTROL)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv --clear $(DM_CONTROL)
	$(DM_CONTROL)/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt \
		--editable . pytest pytest-timeout 'shimmy[dm-control]==2.0.1' dm_control==1.0.50 mujoco==3.17.0 \
		|| echo "dm_control cannot be installed here: its test is left out"
	touch $@

# Tianshou bounds what others want newer (packaging, pandas).
test-tianshou: $(TIANSHOU)/.installed
	test ! -x $(TIANSHOU)/bin/pytest || $(TIANSHOU)/bin/python -m pytest -p no:cacheprovider tests/docs/test_examples.py -k tianshou

$(TIANSHOU)/.installed: pyproject.toml
	$(PYTHON) -m venv --clear $(TIANSHOU)
	$(TIANSHOU)/bin/python -m pip install --quiet --disable-pip-version-check torch==2.13.0 \
		&& $(TIANSHOU)/bin/python -m pip install --quiet --disable-pip-version-check \
			--editable . pytest pytest-timeout torch==2.13.0 gymnasium==1.4.0 tianshou==2.0.1 \
		|| echo "Tianshou cannot be installed here: its test is left out"
	touch $@

# Gym 0.26 wants NumPy below 2, and ML-Agents an old protobuf; what gym_unity asks for beside is older than Gym's wheels.
test-old-gym: $(OLD_GYM)/.installed
	test ! -x $(OLD_GYM)/bin/pytest || $(OLD_GYM)/bin/python -m pytest -p no:cacheprovider tests/docs/test_doors_pages.py -k 'old_gym or unity'

$(OLD_GYM)/.installed: pyproject.toml
	$(PYTHON) -m venv --clear $(OLD_GYM)
	$(OLD_GYM)/bin/python -m pip install --quiet --disable-pip-version-check \
		--editable . pytest pytest-timeout 'numpy<2' gymnasium==1.4.0 gym==0.26.2 grpcio pillow pyyaml protobuf==3.20.3 \
		&& $(OLD_GYM)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps mlagents-envs==0.28.0 gym-unity==0.28.0 \
		|| echo "Gym and ML-Agents cannot be installed here: their tests are left out"
	touch $@

# The wheel with every Python and NumPy that this machine has: some tests, a training, and the hash of what it computed.
test-versions: setup
	$(BIN)/python packaging/try_versions.py $(VERSIONS)

test-all: test test-slow test-long

# What the searchers of sweeps need, and EnvPool, which is large; one that cannot be installed is told, and its tests skip.
$(SEARCHERS): $(STAMP)
	for extra in hyperopt bayesopt bohb nevergrad ax pb2 envpool; do \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[$$extra]" \
			|| echo "shoal-rl[$$extra] cannot be installed here: its tests skip"; \
	done
	touch $(SEARCHERS)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The manual page, which the wheel takes along; a test says when the help has changed.
man: setup
	$(BIN)/shoal help --man > src/man/shoal.1

# The sdist and the wheel, each installed into a new environment and tried.
dist: setup
	rm -rf dist .venvs/dist
	$(BIN)/python -m build --outdir dist .
	for file in dist/*.tar.gz dist/*.whl; do \
		$(PYTHON) -m venv --clear .venvs/dist && \
		.venvs/dist/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt $$file && \
		.venvs/dist/bin/shoal --version && \
		cmp src/man/shoal.1 .venvs/dist/share/man/man1/shoal.1 && \
		.venvs/dist/bin/shoal train CartPole-v1 --stop timesteps_total=8000 --results-dir .venvs/dist/results || exit 1; \
	done

# The documentation as pages that need no network, in build/docs; a warning is an error.
docs: setup
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs build/docs
	@echo "open build/docs/index.html"

bench: setup
	$(BIN)/python benchmarks/throughput.py
	$(BIN)/python benchmarks/solve.py
	$(BIN)/python benchmarks/learning.py bars
	$(BIN)/python benchmarks/memory.py
	$(BIN)/python benchmarks/dqn.py
	$(BIN)/python benchmarks/sac.py
	$(BIN)/python benchmarks/curriculum.py
	$(BIN)/python benchmarks/trpo.py
	$(BIN)/python benchmarks/workers.py
	$(BIN)/python benchmarks/scaling.py
	$(BIN)/python benchmarks/launch.py
	$(BIN)/python benchmarks/rendezvous.py
	$(BIN)/python benchmarks/tune.py
	$(BIN)/python benchmarks/kernel.py
	$(BIN)/python benchmarks/seeds.py
	$(BIN)/python benchmarks/vec.py
	$(BIN)/python benchmarks/serve.py
	$(MAKE) $(BENCH)/.installed
	$(BENCH)/bin/python benchmarks/vectors.py

# A table of six kinds of work beside other libraries, in a quarter of an hour; what it needs is installed the first time.
bench-quick: $(BENCH)/.installed
	$(BENCH)/bin/python benchmarks/quick.py

$(BENCH)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv --clear $(BENCH)
	$(BENCH)/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt \
		--editable '.[torch,atari,envpool,cma]' 'gymnasium[box2d,mujoco]==1.4.0' mujoco==4.0.0
	touch $@

clean:
	rm -rf .venv .venvs dist
