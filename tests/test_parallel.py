"""Threads that share cells, while torch and BLAS use one each and get back what they had."""

import multiprocessing
import sys
import threading
from contextlib import nullcontext

import pytest
import torch
from threadpoolctl import threadpool_info, threadpool_limits

from tosica._parallel import keep_torch_threads, thread_map, thread_pool


@pytest.fixture(params=[1, 3])
def n_threads(request):
    """Number of torch's threads in a test."""
    default = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(default)


def blas_threads():
    return [
        library["num_threads"]
        for library in threadpool_info()
        if library["user_api"] == "blas"
    ]


def test_as_many_threads_work_as_torch_has(n_threads):
    # Each call waits for all others, which works only if they run at the same time.
    barrier = threading.Barrier(n_threads, timeout=30)

    def call(_):
        barrier.wait()
        return threading.current_thread().name

    with thread_pool():
        names = set(thread_map(call, range(n_threads)))
    assert len(names) == n_threads


def test_results_come_in_order(n_threads):
    me = threading.current_thread()
    assert set(thread_map(lambda _: threading.current_thread(), range(5))) == {
        me
    }  # without a pool
    with thread_pool(torch.device("meta")):  # neither for another device
        assert torch.get_num_threads() == n_threads
    with thread_pool():
        assert list(thread_map(lambda i: i**2, range(20))) == [i**2 for i in range(20)]
        assert list(thread_map(str, [])) == []


def test_items_are_read_when_threads_are_free(n_threads):
    n_read = 0

    def items():
        nonlocal n_read
        for i in range(100):
            n_read += 1
            yield i

    with thread_pool():
        results = thread_map(str, items())
        next(results)
        assert n_read <= n_threads + 1
        results.close()  # type: ignore[attr-defined] # it is a generator


def test_torch_and_blas_have_one_thread_inside_and_theirs_afterwards(
    n_threads,
):
    def inside(_=None):
        return torch.get_num_threads(), set(blas_threads())

    with threadpool_limits(2, user_api="blas"):
        outside = blas_threads()
        with thread_pool():
            assert inside() == (1, {1})
            assert list(thread_map(inside, range(3))) == [(1, {1})] * 3
            with thread_pool():  # changes nothing
                assert inside() == (1, {1})
            assert inside() == (1, {1})
        assert blas_threads() == outside
    assert torch.get_num_threads() == n_threads


def test_what_fails_is_raised_and_threads_are_given_back(n_threads):
    def call(i):
        if i == 2:
            raise OSError("no such cell")
        return i

    with pytest.raises(OSError, match="no such cell"), thread_pool():
        list(thread_map(call, range(50)))
    assert torch.get_num_threads() == n_threads


def test_gradients_inference_mode_and_autocast_are_as_the_callers(
    n_threads,
):
    def modes(_):
        product = torch.ones(2, 2) @ torch.ones(2, 2)
        return (
            torch.is_grad_enabled(),
            torch.is_inference_mode_enabled(),
            product.dtype,
            torch.is_autocast_enabled("xpu"),
        )

    with thread_pool():
        assert set(thread_map(modes, range(4))) == {(True, False, torch.float32, False)}
        with torch.no_grad():
            assert set(thread_map(modes, range(4))) == {
                (False, False, torch.float32, False)
            }
        with (
            torch.inference_mode(),
            torch.autocast("cpu", torch.bfloat16),
            torch.autocast("xpu", torch.bfloat16),
        ):
            assert set(thread_map(modes, range(4))) == {
                (False, True, torch.bfloat16, True)
            }


def test_two_pools_at_a_time_give_back_what_there_was():
    both_open = threading.Barrier(2, timeout=30)

    def use():
        with thread_pool():
            both_open.wait()
            list(thread_map(str, range(5)))

    with threadpool_limits(2, user_api="blas"):
        n_torch = torch.get_num_threads()
        n_blas = blas_threads()
        thread = threading.Thread(target=use)
        thread.start()
        use()
        thread.join()
        assert torch.get_num_threads() == n_torch
        assert blas_threads() == n_blas


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not fork")
# Of processes that fork beside other threads Python warns; users' data loaders do it.
@pytest.mark.filterwarnings(
    "ignore:This process .* is multi-threaded:DeprecationWarning"
)
@pytest.mark.parametrize("inside", [False, True], ids=["after a pool", "inside a pool"])
def test_a_forked_process_has_threads_of_its_own(n_threads, inside):
    """Inside a pool as by Lightning's ``strategy="ddp_fork"``: its threads do not go along."""
    with thread_pool():
        list(thread_map(str, range(3)))
    with thread_pool() if inside else nullcontext():
        list(thread_map(str, range(3)))
        child = multiprocessing.get_context("fork").Process(target=_use_pool)
        child.start()
        child.join(60)
        try:
            assert child.exitcode == 0
        finally:
            child.kill()
        assert list(thread_map(str, range(3))) == ["0", "1", "2"]


def _use_pool():
    with thread_pool():
        assert list(thread_map(abs, range(9))) == list(range(9))


def test_torch_gets_back_the_threads_that_others_took(n_threads):
    with keep_torch_threads():
        torch.set_num_threads(n_threads + 1)
    assert torch.get_num_threads() == n_threads
