"""Run the frames of a waiting stage, each as a task of one event loop: the steps of `Runner`, awaited.

Each item ends as it does in the plain worker: the policy is that of `Runner` and `Bisection`, and only the calls of
user code are made here.

Contract
--------
* Functions that are async run in the loop, and so do plain hooks.  A plain `setup`, `predict`, `teardown` or `health`
  runs in the main thread, by `PlainCalls`.
* Async hooks of the items of a batch run together.
* A frame that is stopped, since it was cancelled or its time is over, is answered once its task has ended.  Items that
  had not failed before are answered EXPIRED where it was cancelled: nobody waits for them, and a failure would be
  described and counted for nothing.  Where its time was over they are answered with a TimeoutError.
* Results are copied when they are encoded.  A `predict` in the main thread may run for the next batch meanwhile, so it
  must not write into what it has returned.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from penstock.codec.example import check_answer, input_of
from penstock.codec.formats import Codec
from penstock.config import StageOptions
from penstock.transport.framing import Frame, Status, encode_answers
from penstock.transport.messages import Problem
from penstock.worker.bisect import Bisection
from penstock.worker.current_call import CALL_OF_CONTEXT, CurrentCall
from penstock.worker.device_errors import let_go, ran_out_of_memory
from penstock.worker.plain_calls import Outcome, PlainCalls, Waits
from penstock.worker.problems import USER_ERRORS, describe_error, not_awaited, note_single_item
from penstock.worker.runner import NO_VALUE, BatchWork, Runner, checked, copy_of_example, is_error
from penstock.worker.stage import behind, wants_pre


class Method:
    """A method of a stage, and how it is called."""

    __slots__ = ("function", "in_main_thread", "is_async", "name")

    def __init__(self, function: Callable[..., Any], name: str, *, in_main_thread: bool) -> None:
        self.function = function
        self.name = name
        self.is_async = inspect.iscoroutinefunction(behind(function))
        self.in_main_thread = in_main_thread


class WaitingWork:
    """A frame in progress: its items, the task that runs them, and whether it was stopped."""

    __slots__ = (
        "batch",
        "begun",
        "bisection",
        "calls",
        "cancelled",
        "excused",
        "made",
        "stopped_in",
        "task",
        "timed_out",
        "timer",
        "waits",
    )

    def __init__(self, runner: Runner, frame: Frame) -> None:
        self.batch = BatchWork(runner, frame)
        self.task: asyncio.Task[None] | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.begun = False
        """Whether the task has made its first step: a task that is cancelled before never makes one."""
        self.cancelled = False
        """Cause: the coordinator has cancelled it, or the worker ends."""
        self.timed_out = False
        """Cause: it has taken longer than the stage's `timeout`."""
        self.waits = Waits()
        self.excused = 0.0
        """How much later than at first its time is over: it has waited so long for the main thread."""
        self.stopped_in: BaseException | None = None
        """The error by which user code learned that it was stopped."""
        self.calls = 0
        self.bisection: Bisection | None = None
        self.made: list[CurrentCall] = []
        """The calls of user code, which are over once the frame is answered."""

    def is_stopped(self) -> bool:
        """Whether its results are of no use any more."""
        return self.cancelled or self.timed_out

    def cancel(self) -> None:
        """Have its task get CancelledError at its next `await`."""
        self.cancelled = True
        self._interrupt()

    def time_out(self) -> None:
        """As `cancel`, because its time is over; what it has waited for the main thread is not its time."""
        waited = self.waits.seconds()
        if self.timer is not None and waited > self.excused:
            later, self.excused = waited - self.excused, waited
            self.timer = asyncio.get_running_loop().call_at(self.timer.when() + later, self.time_out)
            return
        self.timed_out = True
        self._interrupt()

    def _interrupt(self) -> None:
        if self.begun and self.task is not None:
            self.task.cancel()


class WaitingRunner:
    """Runs frames through one stage object, many at once."""

    def __init__(
        self,
        stage: Any,
        runner: Runner,
        plain: PlainCalls,
        *,
        name: str,
        batched: bool,
        options: StageOptions,
        now: Callable[[], float],
    ) -> None:
        self._stage = stage
        self._runner = runner
        self._plain = plain
        self._name = name
        self._batched = batched
        self._options = options
        self._now = now
        self._find_methods()

    def _find_methods(self) -> None:
        stage = self._stage
        preprocess, postprocess = getattr(stage, "preprocess", None), getattr(stage, "postprocess", None)
        self._predict = Method(stage.predict, "predict", in_main_thread=True)
        self._preprocess = None if preprocess is None else Method(preprocess, "preprocess", in_main_thread=False)
        self._postprocess = None if postprocess is None else Method(postprocess, "postprocess", in_main_thread=False)
        self._wants_pre = postprocess is not None and wants_pre(postprocess)

    def work_of(self, frame: Frame) -> WaitingWork:
        """The work that a BATCH frame is."""
        return WaitingWork(self._runner, frame)

    async def run(self, work: WaitingWork) -> list[Any]:
        """The buffers of the ANSWERS to a BATCH: one answer for each item, in order.

        It raises nothing, and ends once all user code that it has called has ended.
        """
        work.begun = True
        batch = work.batch
        frame = batch.frame
        started = self._now()
        places = list(range(len(frame.ids)))
        if frame.recalled:
            batch.leave_out_recalled(())
            places = [i for i in places if i not in frame.recalled]
        if not work.is_stopped():
            if self._batched:
                await self._run_batch(work, places, started)
            else:
                await self._run_singles(work, places, started)
        if work.is_stopped():
            self._end_stopped(work)
        if work.bisection is not None:
            work.calls = work.bisection.calls
            if work.bisection.short_of_memory:
                self._runner.shortages.append((work.bisection.short_of_memory, work.bisection.most_ran))
        for call in work.made:
            call.over()
        seconds = self._now() - started
        return encode_answers(frame.frame_id, seconds, work.calls, frame.ids, batch.payloads, batch.statuses)

    def _end_stopped(self, work: WaitingWork) -> None:
        batch = work.batch
        if work.cancelled:
            status, payload = int(Status.EXPIRED), b""
        else:
            late = TimeoutError(f"exceeded the stage's timeout of {self._options.timeout:g} s; cancelled")
            late.__cause__ = work.stopped_in
            status, payload = self._runner.answer_of(late)
            late.__cause__ = None
        work.stopped_in = None
        for i, before in enumerate(batch.statuses):
            if before == Status.OK:
                batch.statuses[i], batch.payloads[i] = status, payload

    # -- calls of user code -------------------------------------------------------------------------------------

    def _note(self, work: WaitingWork, places: list[int]) -> None:
        """Have user code that this task calls from now on be told of the items at `places`."""
        call = CurrentCall(self._now)
        call.frame, call.places = work.batch.frame, places
        work.made.append(call)
        CALL_OF_CONTEXT.set(call)

    async def _call(self, work: WaitingWork | None, method: Method, *arguments: Any) -> Outcome:
        """The outcome of a call of user code; notes what `work` was stopped by, if it was."""
        try:
            if method.is_async:
                return await method.function(*arguments), None
            if method.in_main_thread:
                waits = None if work is None else work.waits
                outcome = await self._plain.make(method.function, *arguments, waits=waits)
            else:
                outcome = method.function(*arguments), None
        except USER_ERRORS as error:
            if work is not None and work.is_stopped() and work.stopped_in is None:
                work.stopped_in = error
            return None, error
        unawaited = None if outcome[1] is not None else not_awaited(outcome[0], method.name)
        return outcome if unawaited is None else (None, unawaited)

    async def _each(
        self,
        work: WaitingWork | None,
        rows: Sequence[tuple[Any, ...]],
        step: Callable[..., Awaitable[Any]],
        *,
        together: bool,
    ) -> list[Any]:
        """The results of `step` for `rows`: one after the other, or each as a task, `together` with the others.

        Where this task is cancelled those of it are cancelled too, and it goes on once they have ended.  A row whose
        task never began has the error by which it ended.
        """
        if len(rows) < 2 or not together:
            return [await step(work, *row) for row in rows]
        tasks = [asyncio.ensure_future(step(work, *row)) for row in rows]
        pending = set(tasks)
        while pending:
            try:
                _, pending = await asyncio.wait(pending)
            except asyncio.CancelledError:
                pending = {task for task in tasks if not task.done()}
                for task in pending:
                    task.cancel()
        return [asyncio.CancelledError() if task.cancelled() else task.result() for task in tasks]

    # -- one item at a time -------------------------------------------------------------------------------------

    async def _run_singles(self, work: WaitingWork, places: list[int], now: float) -> None:
        """Run the items at `places` of a stage without a batch policy; mostly it is one."""
        if len(places) == 1:
            await self._run_single(work, places[0], now)
            return
        ended = await self._each(work, [(i, now) for i in places], self._run_single, together=True)
        self._end_not_begun(work, places, ended)

    def _end_not_begun(self, work: WaitingWork, places: list[int], ended: list[Any]) -> None:
        """End the items whose tasks were cancelled before they had begun, as `ended` says of each, and by nobody of us.

        Only a stage does that which cancels all tasks of the loop.
        """
        for i, how in zip(places, ended, strict=True):
            if type(how) is asyncio.CancelledError and work.batch.statuses[i] == Status.OK and not work.is_stopped():
                work.batch.end(i, how)

    async def _run_single(self, work: WaitingWork, i: int, now: float) -> None:
        """Run item `i` of a stage without a batch policy."""
        self._note(work, [i])
        value = await self._value(work, i, now)
        if value is NO_VALUE or work.is_stopped():
            return
        work.calls += 1
        result, error = await self._call(work, self._predict, value)
        if work.is_stopped():
            return
        if error is not None:
            note_single_item(error, value)
            work.batch.end(i, error)
            return
        await self._result(work, i, value, result)

    async def _value(self, work: WaitingWork, i: int, now: float) -> Any:
        """The value of item `i` for `predict`, decoded and preprocessed; NO_VALUE where the item has ended."""
        batch = work.batch
        value = self._runner.value_of(batch, i, now)
        if value is NO_VALUE or self._preprocess is None:
            return value
        value, error = await self._call(work, self._preprocess, value)
        if work.is_stopped():
            return NO_VALUE
        if error is not None or is_error(value):
            batch.end(i, value if error is None else error)
            return NO_VALUE
        return value

    async def _result(self, work: WaitingWork, i: int, pre: Any, result: Any) -> None:
        """Answer item `i` with what `postprocess` makes of the `result` of `predict`."""
        if self._postprocess is not None and not is_error(result):
            given = (result, pre) if self._wants_pre else (result,)
            result, error = await self._call(work, self._postprocess, *given)
            if work.is_stopped():
                return
            if error is not None:
                work.batch.end(i, error)
                return
        self._runner.put_result(work.batch, i, result)

    # -- batches ------------------------------------------------------------------------------------------------

    async def _run_batch(self, work: WaitingWork, places: list[int], now: float) -> None:
        """Run the items at `places` of a stage with a batch policy."""
        places, values = await self._values(work, places, now)
        if not places or work.is_stopped():
            return
        work.bisection = bisection = Bisection(self._predict.function, enabled=self._options.bisect)
        results, whole = await self._predict_all(work, bisection, places, values)
        if work.is_stopped():
            return
        if whole is None:
            await self._results(work, places, values, results)
            return
        steps = bisection.split(places, values, whole, work.batch)
        del whole  # its traceback may refer to this frame
        part = next(steps, None)
        while part is not None and not work.is_stopped():
            ran, error = await self._run_part(work, bisection, part)
            part = None if work.is_stopped() else bisection.following(steps, ran, error)
            del error

    async def _run_part(
        self, work: WaitingWork, bisection: Bisection, part: list[int]
    ) -> tuple[list[int], BaseException | None]:
        """Run the items of `part`, which are fewer than the batch; returns those that could be, and the error."""
        part, values = await self._values(work, part, self._now())
        if not part or work.is_stopped():
            return [], None
        results, error = await self._predict_all(work, bisection, part, values)
        if error is None and not work.is_stopped():
            await self._results(work, part, values, results)
        return part, error

    async def _values(self, work: WaitingWork, places: list[int], now: float) -> tuple[list[int], list[Any]]:
        """The places of those items at `places` that do not end on the way, and their values for `predict`."""
        hook = self._preprocess
        found = await self._each(
            work,
            [(i, now) for i in places],
            self._value if hook is None else self._noted_value,
            together=hook is not None and hook.is_async,
        )
        self._end_not_begun(work, places, found)
        live = [(i, value) for i, value in zip(places, found, strict=True) if work.batch.statuses[i] == Status.OK]
        return [i for i, _ in live], [value for _, value in live]

    async def _noted_value(self, work: WaitingWork, i: int, now: float) -> Any:
        self._note(work, [i])
        return await self._value(work, i, now)

    async def _predict_all(
        self, work: WaitingWork, bisection: Bisection, places: list[int], values: list[Any]
    ) -> tuple[list[Any], BaseException | None]:
        """The results of one call of `predict`, and its error."""
        self._note(work, places)
        bisection.begin_call()
        # The stage gets a copy of the list, because it may change it, and the list is still needed here.
        results, error = await self._call(work, self._predict, values.copy())
        if error is not None:
            return [], error
        try:
            return bisection.returned(results, len(values)), None
        except USER_ERRORS as wrong:
            return [], wrong

    async def _results(self, work: WaitingWork, places: list[int], pres: list[Any], results: list[Any]) -> None:
        """Answer the items at `places` with what `postprocess` makes of their `results`."""
        rows = list(zip(places, pres, results, strict=True))
        if self._postprocess is None:
            for i, _, result in rows:
                self._runner.put_result(work.batch, i, result)
            return
        ended = await self._each(work, rows, self._noted_result, together=self._postprocess.is_async)
        self._end_not_begun(work, places, ended)

    async def _noted_result(self, work: WaitingWork, i: int, pre: Any, result: Any) -> None:
        if not work.is_stopped():
            self._note(work, [i])
            await self._result(work, i, pre, result)

    # -- what is no batch ---------------------------------------------------------------------------------------

    async def set_up(self, arguments: dict[str, Any]) -> None:
        """Run the stage's `setup`; raises what it raises."""
        await self._run_method("setup", **arguments)
        self._find_methods()  # it may have replaced some, as by `self.predict = torch.compile(self.predict)`

    async def tear_down(self) -> None:
        """Run the stage's `teardown`; raises what it raises."""
        await self._run_method("teardown")

    async def check_health(self) -> Problem | None:
        """Run the stage's `health`; None if it returned, else what it raised."""
        try:
            await self._run_method("health")
        except USER_ERRORS as error:
            return describe_error(error)
        return None

    async def _run_method(self, name: str, **arguments: Any) -> None:
        method = Method(partial(getattr(self._stage, name), **arguments), name, in_main_thread=True)
        _, error = await self._call(None, method)
        try:
            if error is not None:
                raise error
        finally:
            del error  # its traceback refers to this frame

    async def warm_up(
        self, examples: list[Any], max_size: int, formats: Sequence[Codec] = (), *, tells: bool = True
    ) -> list[str]:
        """As `Runner.warm_up`."""
        troubles = []
        for index, example in enumerate(examples):
            (result,) = await self._rehearse([copy_of_example(input_of(example))])
            check_answer(example, result, f"examples[{index}]")
            self._runner.look_at(result, tells=tells, counts=False)
            trouble = self._runner.try_formats(f"examples[{index}]", result, formats)
            if trouble:
                troubles.append(trouble)
        if examples and self._batched:
            await self._rehearse_full(examples, max_size)
        return troubles

    async def _rehearse_full(self, examples: list[Any], size: int) -> None:
        """Run `size` of the examples at once, or half as many, and so on, where there is no memory for more."""
        while size > 1:
            places = [i % len(examples) for i in range(size)]
            try:
                results = await self._rehearse([copy_of_example(input_of(examples[place])) for place in places])
            except USER_ERRORS as error:
                if not ran_out_of_memory(error):
                    raise
                shortage = error
            else:
                for place, result in zip(places, results, strict=True):
                    check_answer(examples[place], result, f"examples[{place}] in a batch of {size}")
                return
            let_go(shortage)
            del shortage
            failed, size = size, (size + 1) // 2
            self._runner.shortages.append((failed, size))

    async def _rehearse(self, values: list[Any]) -> list[Any]:
        """The results of one run of the whole stage; raises the first error of its items."""
        call = CurrentCall(self._now)
        CALL_OF_CONTEXT.set(call)
        try:
            pres = values
            if self._preprocess is not None:
                pres = await self._rehearse_each(self._preprocess, [(value,) for value in values])
            if self._batched:
                call.places = list(range(len(pres)))
                results, error = await self._call(None, self._predict, pres.copy())
                if error is not None:
                    raise error
                results = Bisection(self._predict.function, enabled=False).returned(results, len(pres))
            else:
                results = await self._rehearse_each(self._predict, [(value,) for value in pres])
            results = [checked(result) for result in results]
            if self._postprocess is None:
                return results
            given = list(zip(results, pres, strict=True)) if self._wants_pre else [(result,) for result in results]
            return await self._rehearse_each(self._postprocess, given)
        finally:
            call.over()
            CALL_OF_CONTEXT.set(None)

    async def _rehearse_each(self, method: Method, given: list[tuple[Any, ...]]) -> list[Any]:
        """The results of `method` for each of `given`, together where it is async; raises the first error."""

        async def rehearse(_: None, arguments: tuple[Any, ...]) -> Outcome:
            call = CurrentCall(self._now)
            call.places = [0]
            CALL_OF_CONTEXT.set(call)
            try:
                return await self._call(None, method, *arguments)
            finally:
                call.over()

        outcomes = await self._each(None, [(arguments,) for arguments in given], rehearse, together=method.is_async)
        for arguments, outcome in zip(given, outcomes, strict=True):
            error = outcome if isinstance(outcome, BaseException) else outcome[1]
            if error is not None:
                if method is self._predict:
                    note_single_item(error, arguments[0])
                raise error
        return [checked(value) for value, _ in outcomes]
