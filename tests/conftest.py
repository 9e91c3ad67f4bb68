"""Fixtures and settings for all tests."""

import importlib
import os
import pickle
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock
from hypothesis import settings

# Each core already runs a test process, so more threads would only wait. torch reads the variable when it is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

os.environ.pop("DUREADER_RETRIEVAL_CACHE", None)  # tests select the cache by XDG_CACHE_HOME

if "CPU_UNITS" in os.environ:  # simulate a CPU with these units, here and in every process that tests start
    sys.path.insert(0, str(Path(__file__).parent / "cpu_units"))
    python_path = sys.path[0]
    if os.environ.get("PYTHONPATH"):
        python_path += os.pathsep + os.environ["PYTHONPATH"]
    os.environ["PYTHONPATH"] = python_path
    importlib.import_module("sitecustomize")

from commands import ROOT, SAMPLE, Done, run
from environments import environment
from hub_server import Hub
from loaded import Loaded
from releases import draft_everything
from whole_release import make_whole

from builders.core.jobs import prepare_processes

pytest.register_assert_rewrite("killing")  # a helper whose failures show both sides of a comparison

settings.register_profile("any machine", deadline=None)  # an example may take long if all cores are busy
settings.load_profile("any machine")

# Test files of half a minute or more start first. Otherwise the last worker would run such a file while others wait.
_LONG = (
    "test_reproduce_models",
    "test_gpu",
    "test_peers",
    "test_ray",
    "test_ray_models",
    "test_fuzz_hub",
    "test_train",
    "test_fuzz_releases",
    "test_publish",
    "test_encode",
    "test_release",
    "test_dataset_fresh",
    "test_export",
    "test_bm25_elasticsearch",
    "test_fuzz_sources",
)
# Files and tests that only `make test-slow` runs. Each takes many seconds, and quicker tests cover the same code.
_SLOW = (
    "test_fuzz_kills.py",
    "test_fuzz_kills_rounds.py",
    "test_peers.py",
    "test_ray.py",
    "test_ray_models.py",
    "test_reproduce_models.py",
    "test_train.py",
    "test_again.py::test_states_of_another_start_are_not_resumed",
    "test_annotate.py::test_two_imports_at_once_lose_nothing",
    "test_answers.py::test_answers_of_the_demo_rows_are_those_of_the_raw_file",
    "test_answers.py::test_differences_in_groups_have_holms_correction",
    "test_answers.py::test_removed_training_questions_lose_their_answers",
    "test_bm25.py::test_chunks_and_terms_that_are_only_looked_up_leave_nothing_out",
    "test_bm25.py::test_every_number_of_threads_writes_the_same_postings",
    "test_bm25.py::test_scores_and_order_are_lucenes",
    "test_bm25.py::test_segmentation_in_processes_keeps_the_order",
    "test_bm25_elasticsearch.py::test_hits_are_those_of_the_engine_in_this_process",
    "test_check.py::test_a_call_returns_tables_and_whether_the_release_failed",
    "test_check.py::test_a_release_without_a_corpus_says_what_was_not_tested",
    "test_check.py::test_every_byte_is_read_again_whatever_is_known_of_a_file",
    "test_check.py::test_figures_that_are_not_those_of_the_rows",
    "test_check.py::test_the_command_prints_every_test_and_exits_by_what_it_found",
    "test_check.py::test_the_command_prints_ours_beside_the_papers",
    "test_compare.py::test_holm_s_correction_is_that_of_statsmodels",
    "test_costs.py::test_the_manifests_of_models_have_costs",
    "test_crosslingual.py::test_a_package_of_93_percent_is_accepted",
    "test_crosslingual.py::test_a_package_of_less_than_93_percent_is_refused",
    "test_crosslingual.py::test_refused_reviews",
    "test_crosslingual.py::test_xquad_in_english_has_the_paragraphs_of_the_chinese_questions",
    "test_dataset_fresh.py::test_loading_by_path_alone[3.6]",
    "test_dataset_fresh.py::test_loading_by_path_alone[installed]",
    "test_dataset_fresh.py::test_the_import_survives_a_datasets_without_the_private_hook",
    "test_dataset_fresh.py::test_the_module_loads_with_its_public_api_on_36",
    "test_dataset_fresh.py::test_the_script_gives_the_rows_that_were_written",
    "test_dataset_fresh.py::test_the_script_reads_the_published_archive",
    "test_dataset_fresh.py::test_the_working_directory_does_not_matter",
    "test_dataset_fresh.py::test_the_working_directory_does_not_matter[repository]",
    "test_distil.py::test_a_training_learns_a_machines_labels_but_no_dev_question",
    "test_distil.py::test_prompts_travel_from_the_training_to_search_and_hub",
    "test_encode.py::test_a_killed_tokenizer_is_a_worker_that_died",
    "test_encode.py::test_a_sample_gives_what_the_whole_ranks_but_for_the_other_passages",
    "test_encode.py::test_damaged_embeddings_are_encoded_again",
    "test_encode.py::test_processes_give_the_bits_that_a_thread_gives_and_are_kept",
    "test_endpoints.py::test_a_damaged_answer_is_refused_or_read",
    "test_examples.py::test_pinyin_tokens",
    "test_examples.py::test_search_page",
    "test_examples.py::test_train_from_negatives",
    "test_examples.py::test_two_stages",
    "test_folders.py::test_processes_and_threads_take_turns_and_build_once",
    "test_golden_models.py::test_outputs_of_models_are_as_they_were",
    "test_gpu.py::test_every_step_runs_without_a_card",
    "test_ir_datasets.py::test_every_id_gives_the_rows_of_a_directory_a_hub_and_the_archive",
    "test_kinds.py::test_an_index_is_resumed",
    "test_kinds.py::test_an_inverted_index_equals_the_whole_embeddings",
    "test_long_lines.py::test_json_in_one_line_is_no_line_that_is_too_long",
    "test_match.py::test_a_dual_encoder_scores_by_the_cosine_of_two_queries",
    "test_model_inputs.py::test_a_prompt_named_passage_or_corpus_is_used",
    "test_models_refused.py::test_a_hub_model_is_pinned_to_a_commit",
    "test_models_refused.py::test_vectors_of_another_commit_are_refused",
    "test_odd_calls.py::test_an_odd_call_ends_in_the_result_of_the_command_line_or_in_one_error",
    "test_out_of_domain.py::test_the_real_files_give_their_known_counts",
    "test_own_models.py::test_a_run_reuses_the_vectors_of_a_run_over_candidates",
    "test_own_tokenizers.py::test_a_function_of_a_library_is_sent_by_its_name",
    "test_own_tokenizers.py::test_a_users_tokens_are_scored_by_lucenes_formula",
    "test_own_tokenizers.py::test_worker_processes_call_the_same_function",
    "test_packaging.py::test_the_programs_run_from_the_source_distribution",
    "test_prefill.py::test_answers_of_a_killed_judge_are_not_asked_for_again",
    "test_progress.py::test_a_run_encodes_and_then_searches",
    "test_publish.py::test_a_dry_run_lists_the_files_and_sends_nothing",
    "test_publish.py::test_a_refused_commit_leaves_nothing_and_a_lost_answer_makes_no_second_commit",
    "test_publish.py::test_a_release_is_one_commit_and_loads_everywhere",
    "test_publish.py::test_a_release_that_fails_check_is_refused",
    "test_publish.py::test_a_shard_that_changes_while_it_is_uploaded_is_noticed",
    "test_publish.py::test_it_loads_on_datasets_36",
    "test_publish.py::test_refusals_of_the_hub_are_clear",
    "test_publish.py::test_the_registration_has_a_task_for_each_measure_of_a_judged_split",
    "test_publish.py::test_what_is_published_is_a_release_that_passes_check",
    "test_python_api.py::test_dense_re_rankings_are_those_of_the_command_line",
    "test_python_api.py::test_re_rankings_of_a_cross_encoder_are_those_of_the_command_line",
    "test_python_api.py::test_verbs_pass_their_results_on_without_files",
    "test_reading_budget.py::test_budgets_equal_a_brute_force",
    "test_recipe.py::test_a_finished_training_depends_on_the_commit",
    "test_release.py::test_a_build_or_its_worker_is_killed_and_goes_on",
    "test_release.py::test_python_gets_the_release_with_a_report",
    "test_release.py::test_words_are_cut_where_the_rows_carry_none",
    "test_reproduce.py::test_the_pool_is_trained_and_its_best_passages_go_to_people",
    "test_reproduce_tables.py::test_a_bar_of_figure_2_is_measured_by_the_judgments_of_its_time",
    "test_rerank.py::test_an_interrupted_encoding_of_candidates_is_resumed",
    "test_rerank.py::test_batches_and_processes_change_nothing",
    "test_runs.py::test_columns_are_written_as_rankings_are",
    "test_runs.py::test_weights_are_tuned_on_the_sixteenth_of_the_training_questions",
    "test_scripts.py::test_a_script_without_a_main_guard_runs_once_and_ends",
    "test_scripts.py::test_threads_get_the_results_of_calls_one_after_another",
    "test_similar.py::test_a_second_removal_adds_to_the_first",
    "test_similar.py::test_several_processes_find_the_same",
    "test_similar.py::test_the_new_release_passes_every_test_of_check",
    "test_small_vectors.py::test_chunks_of_another_size_and_two_processes_have_the_same_ranges_and_codes",
    "test_small_vectors.py::test_codes_are_those_of_sentence_transformers",
    "test_space.py::test_fifty_threads_get_the_answers_that_one_gets",
    "test_stress.py::test_real_questions_change_once_and_stay_apart",
    "test_tables.py::test_the_real_paragraphs_are_cut_as_jieba_cuts_them",
    "test_threads.py::test_an_index_that_another_call_has_finished_is_used_or_kept",
    "test_threads.py::test_starts_of_trainings_in_threads_leave_the_libraries_as_they_are",
    "test_train_models.py::test_the_official_models_train_from_the_imported_negatives",
    "test_train_models.py::test_training_teaches_which_words_stand_for_each_other",
    "test_translate.py::test_a_local_model_gives_what_its_library_generates",
    "test_translate.py::test_answers_of_a_killed_command_are_not_asked_for_again",
    "test_verbs_both_ways.py::test_a_wrong_value_is_the_same_error_in_both_ways",
    "test_verbs_both_ways.py::test_shell_and_python_do_the_same[0 builders release]",
    "test_verbs_both_ways.py::test_shell_and_python_do_the_same[42 builders publish]",
    "test_verbs_both_ways.py::test_shell_and_python_do_the_same[50 baselines train]",
    "test_verbs_both_ways.py::test_shell_and_python_do_the_same[68 baselines errors no-answer]",
    "test_workers.py::test_each_worker_of_a_pool_gets_a_value_of_its_own",
)


# Tests with many cases, of which `make test` runs only these. Each case builds a release or calls a whole command.
_QUICK_CASES = {
    "test_again.py::test_a_damaged_output_is_made_again": ("bm25", "official"),
    "test_again.py::test_again_repeats_the_work": ("bm25", "official"),
    "test_again.py::test_another_input_is_named_and_read": ("bm25", "encode", "official"),
    "test_again.py::test_another_option_is_named_and_obeyed": ("bm25", "mine", "official"),
    "test_again.py::test_local_paths_make_no_difference": ("bm25", "official"),
    "test_again.py::test_no_model_library_is_imported_for_a_finished_output": ("run",),
    "test_check.py::test_each_fault_is_found_and_nothing_else": (
        "a passage that is judged is missing",
        "a text twice",
        "separators, tabs and line ends, which are text",
    ),
    "test_copies.py::test_what_export_writes_is_read_back": ("beir",),
    "test_dataset.py::test_a_damaged_shard_is_named": (
        "public API-flip_a_byte-SHA-256-plain-False",
        "public API-truncate-bytes, but manifest-streaming-False",
        "public API-unlink-listed-plain-True",
    ),
    "test_export.py::test_an_export_read_back_is_the_release_whatever_its_texts": ("trec",),
    "test_front_door.py::test_a_shell_completes_verbs_and_options": ("bash",),
    "test_hostile_servers.py::test_a_signal_ends_a_command_that_asks_a_language_model": ("silent-2",),
    "test_kinds.py::test_settings_of_a_model_are_used": ("settings3-cosines",),
    "test_long_lines.py::test_a_line_that_is_too_long_is_one_error_in_little_memory": ("rows-.gz", "run-"),
    "test_own_tokenizers.py::test_an_index_is_reused_for_the_unchanged_function": ("change0-True", "change1-False"),
    "test_readers.py::test_a_release_in_a_folder_with_any_name_is_read_itself": ("_id=5",),
    "test_release.py::test_the_real_rows_give_the_official_passages": ("3",),
    "test_release.py::test_workers_change_not_a_byte": ("1",),
    "test_secrets.py::test_a_token_that_a_hub_repeats_is_hidden": ("header-404", "json-403", "reason-401"),
    "test_small_vectors.py::test_an_interrupted_encoding_resumes_with_the_same_bytes": ("1",),
    "test_verbs_both_ways.py::test_a_run_in_memory_has_the_hits_of_the_file": ("baselines bm25_0", "baselines fuse0"),
    "test_verbs_both_ways.py::test_objects_stand_for_paths": ("baselines evaluate", "baselines fuse0"),
    "test_verbs_both_ways.py::test_runs_in_memory_are_accepted": ("baselines evaluate", "baselines fuse0"),
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the slow tests, and let the files of ``_LONG`` start first."""
    for item in items:
        if _is_slow(f"{item.path.name}::{item.name}"):
            item.add_marker(pytest.mark.slow)
    start_order = {name: position for position, name in enumerate(_LONG)}
    items.sort(key=lambda item: start_order.get(item.path.stem, len(start_order)))


def _is_slow(name: str) -> bool:
    """Return True if only `make test-slow` runs a test. ``name`` is ``FILE::TEST`` or ``FILE::TEST[CASE]``."""
    if name.startswith(_SLOW):
        return True
    test, _, case = name.removesuffix("]").partition("[")
    return test in _QUICK_CASES and case not in _QUICK_CASES[test]


def pytest_xdist_auto_num_workers() -> int:
    """Use one more worker than cores, because tests often wait for servers and processes."""
    return (os.cpu_count() or 1) + 1


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the counts of the fuzzers, which their tests have recorded."""
    fuzz_lines = set()
    for reports in terminalreporter.stats.values():
        for report in reports:
            for name, value in getattr(report, "user_properties", ()):
                if name == "fuzz":
                    fuzz_lines.add(value)
    for line in sorted(fuzz_lines):
        terminalreporter.write_line(line)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Repeat the failures as the last lines of the output.

    The summary of pytest comes earlier, and the end of a long log shows what ending processes print after it.
    """
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or hasattr(config, "workerinput"):  # a worker's failures are reported by the first process
        return
    for outcome in ("failed", "error"):
        for report in reporter.stats.get(outcome, ()):
            crash = getattr(report.longrepr, "reprcrash", None)
            message = " ".join((crash.message if crash else str(report.longrepr)).split())
            print(f"{outcome}: {report.nodeid}: {message[:500]}", flush=True)


@pytest.fixture(scope="session", autouse=True)
def _processes() -> None:
    """Let multiprocessing create its socket folder now, because a test's own TMPDIR is removed after the test."""
    prepare_processes()


@pytest.fixture(scope="module", autouse=True)
def _signals() -> Iterator[None]:
    """Restore signal handlers after each test file, because libraries such as Ray replace the handler of SIGTERM."""
    earlier_handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in earlier_handlers.items():
        signal.signal(number, handler)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real data beside the project, read-only. Skips the test if the folder is missing."""
    folder = ROOT.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("needs the real data files in ../shared/data")
    return folder


Once = Callable[[str, Callable[[Path], object]], Path]


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Once:
    """``once(name, make)`` returns the folder that ``make(folder)`` wrote, once for all workers. Do not change it."""
    worker_folder = tmp_path_factory.getbasetemp()
    shared_folder = worker_folder if worker_id == "master" else worker_folder.parent

    def make_once(name: str, make: Callable[[Path], object]) -> Path:
        folder = shared_folder / "once" / name
        folder.parent.mkdir(exist_ok=True)
        # Another worker may write the same folder now.
        with FileLock(f"{folder}.lock"):
            if not folder.exists():
                partial_folder = folder.with_name(f"{name}.part")
                shutil.rmtree(partial_folder, ignore_errors=True)  # another worker may have failed
                make(partial_folder)
                partial_folder.rename(folder)
        return folder

    return make_once


@pytest.fixture(scope="session")
def whole_release(once: Once) -> Path:
    """A tiny release with every kind of config (:mod:`whole_release`). Do not change it, use ``whole_copy``."""
    return once("whole", make_whole)


@pytest.fixture
def whole_copy(whole_release: Path, tmp_path: Path) -> Path:
    """A copy of ``whole_release`` that the test may change."""
    return Path(shutil.copytree(whole_release, tmp_path / "release"))


@pytest.fixture(scope="session")
def everything(once: Once) -> Path:
    """A release of :func:`releases.all_tables` with configs of every kind. Do not change it."""
    return once("everything", draft_everything)


@pytest.fixture(scope="session")
def sample_release(once: Once) -> Path:
    """The release that the first command of README builds from the embedded sample. Do not change it."""
    return once("sample", lambda folder: run("builders", "release", "--quiet", "--raw", SAMPLE, "--out", folder))


@pytest.fixture(scope="session")
def demo_release(shared_data: Path, once: Once) -> Path:
    """A release of DuReader's published demo rows, with 89 dev questions. Do not change it."""
    demo_rows = shared_data / "dureader-2.0-demo"
    return once("demo", lambda folder: run("builders", "release", "--quiet", "--raw", demo_rows, "--out", folder))


@pytest.fixture(scope="session")
def datasets36() -> Path:
    """The interpreter of an environment with ``datasets`` 3.6, the last version that runs loading scripts."""
    requirements = ROOT / "tests" / "datasets36-requirements.txt"
    return environment("datasets-3.6", requirements, "DUREADER_RETRIEVAL_VENV36") / "python"


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the test an empty user's cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trust a file as soon as it is verified. No test changes a file twice within a tick of the disk's clock."""
    monkeypatch.setattr("builders.core.cache._SETTLED_AFTER", -1)


_DRAWN_FIGURES: dict[bytes, dict[str, bytes]] = {}  # by the pickled arguments of the drawing function


@pytest.fixture
def equal_figures_are_drawn_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reuse the figures of an equal release, because drawing takes most of the time of a tiny publication."""
    # Imported here, because few tests draw figures.
    from builders.check.histograms import draw_histograms

    def draw_once(*counts: Any) -> dict[str, bytes]:
        key = pickle.dumps(counts)
        if key not in _DRAWN_FIGURES:
            _DRAWN_FIGURES[key] = draw_histograms(*counts)
        return _DRAWN_FIGURES[key]

    monkeypatch.setattr("builders.publish.upload.draw_histograms", draw_once)


@pytest.fixture
def hub() -> Iterator[Hub]:
    """An empty hub on loopback."""
    with Hub() as server:
        yield server


@pytest.fixture
def call(hub: Hub, tmp_path: Path) -> Callable[..., Done]:
    """``call(verb, *options)`` runs a verb of baselines against ``hub``, and checks the exit code ``code``."""
    from hub_client import run_at

    return lambda *words, **options: run_at(hub, tmp_path / "home", "baselines", *words, **options)


@pytest.fixture(scope="session")
def loaded() -> Iterator[Loaded]:
    """A process that has imported the libraries of trainings. Its forks run commands without delay."""
    with Loaded(HF_ENDPOINT="http://127.0.0.1:9") as process:
        yield process


@pytest.fixture(scope="session")
def checkpoints(once: Once) -> Path:
    """A checkpoint of each kind: dual (two weight files), cross, mlm. Do not change them."""
    # Imported here, because torch loads slowly.
    from checkpoints import make_checkpoints

    return once("checkpoints", make_checkpoints)


@pytest.fixture
def checkpoint(checkpoints: Path, tmp_path: Path) -> Path:
    """A dual-encoder that the test may change, with all the files that must not be pushed."""
    from checkpoints import with_what_stays

    return with_what_stays(checkpoints / "dual", checkpoints / "cross", tmp_path / "checkpoint")
