"""What only Python has: loops of both kinds, exceptions, Ctrl-C, threads, processes, pickling. HAVERSACK_MODEL names a model file,
HAVERSACK_CYCLES how often an answer is begun and left."""

from __future__ import annotations

import asyncio
import copy
import gc
import math
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

import haversack
from haversack import Engine

MODEL = os.environ["HAVERSACK_MODEL"]
CYCLES = int(os.environ.get("HAVERSACK_CYCLES", "200"))
ENDLESS = {"max_tokens": 1500, "ignore_end": True}


def opened(**options):
    return Engine(MODEL, memory="64M", threads=1, **options)


def threads() -> int:
    return len(os.listdir("/proc/self/task")) if os.path.isdir("/proc/self/task") else threading.active_count()


def live(*classes) -> int:
    gc.collect()
    return sum(isinstance(one, classes) for one in gc.get_objects())


class Talking(unittest.TestCase):
    def test_pieces_are_the_text_in_both_kinds_of_loop(self):
        with opened() as engine:
            def ask():
                return engine.complete("The capital of France is", max_tokens=24)

            async def read():
                return [piece async for piece in ask()]

            whole = ask().text()
            pieces = list(ask())
            self.assertGreater(len(pieces), 1)
            self.assertEqual("".join(pieces), whole)
            self.assertEqual(asyncio.run(read()), pieces)

    def test_two_answers_are_read_at_once(self):
        async def read(answer):
            return "".join([piece async for piece in answer])

        async def both(engine):
            anna, ben = engine.conversation("anna"), engine.conversation("ben")
            return await asyncio.gather(read(anna.say("Hello.", max_tokens=20)), read(ben.say("Hello.", max_tokens=20)))

        with opened() as engine:
            first, second = asyncio.run(both(engine))
            self.assertEqual(first, second)

    def test_leaving_a_loop_ends_the_answer(self):
        async def leave(engine):
            async for _ in engine.complete("a", **ENDLESS):
                break

        async def cancelled(engine):
            async def read():
                async for _ in engine.complete("a", **ENDLESS):
                    pass

            task = asyncio.ensure_future(read())
            await asyncio.sleep(0.1)
            task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await task

        with opened(batch=1, queue=1) as engine:
            for _ in engine.complete("a", **ENDLESS):
                break
            with engine.complete("a", **ENDLESS) as answer:
                next(answer)
            answer.text()
            self.assertEqual(answer.report.finish, "cancelled")
            asyncio.run(leave(engine))
            asyncio.run(cancelled(engine))
            # There is one place, and it is free.
            self.assertTrue(engine.complete("a", max_tokens=2).text() is not None)

    def test_a_schema_is_a_mapping_and_an_answer_a_value(self):
        schema = {
            "type": "object",
            "properties": {"yes": {"type": "boolean"}},
            "required": ["yes"],
            "additionalProperties": False,
        }
        with opened() as engine:
            self.assertIn(engine.complete("a", regex="yes|no", max_tokens=8).text(), ("yes", "no"))
            value = engine.complete("a", json_schema=schema, max_tokens=200).json()
            self.assertIsInstance(value["yes"], bool)

    def test_memory_and_reports_are_data(self):
        with opened() as engine:
            anna = engine.conversation("anna", system="Be brief.")
            answer = anna.say("Hello.", max_tokens=6)
            answer.text()
            report = answer.report
            self.assertEqual((report.turn, report.tokens, report.finish), (0, 6, "length"))
            self.assertEqual(pickle.loads(pickle.dumps(report)), report)
            memory = engine.memory()
            self.assertEqual([held.name for held in memory.sequences], ["anna"])
            self.assertLess(memory.total_bytes, memory.limit_bytes)
            plan = haversack.plan(MODEL, memory="64M")
            self.assertGreaterEqual(plan.weights_bytes, memory.weights_bytes)


class Errors(unittest.TestCase):
    def test_every_kind_is_a_class(self):
        for name in ("Busy", "Cancelled", "Closed", "Conflict", "Internal", "InvalidInput", "Io", "NotFound", "OutOfMemory",
                     "TooLarge", "Unsupported"):  # fmt: skip
            self.assertTrue(issubclass(getattr(haversack, name), haversack.Error))
        self.assertTrue(issubclass(haversack.InvalidInput, ValueError))
        self.assertTrue(issubclass(haversack.OutOfMemory, MemoryError))

    def test_wrong_options_are_refused(self):
        for options in (
            {"memory": "a lot"}, {"memory": -1}, {"memory": "caf\udce9"}, {"kv": "int9"}, {"threads": -1}, {"threads": 10**30},
            {"threads": 0}, {"context": -5}, {"batch": 10**9}, {"queue": -1},
        ):  # fmt: skip
            with self.assertRaises(haversack.InvalidInput, msg=options):
                Engine(MODEL, **options)
        with self.assertRaises(haversack.NotFound):
            Engine("absent.gguf")
        with self.assertRaises(TypeError):
            Engine(MODEL, color="red")

    def test_wrong_calls_are_refused(self):
        with opened() as engine:
            for options in (
                {"max_tokens": -1}, {"max_tokens": 2**70}, {"top_k": -1}, {"temperature": -1}, {"temperature": math.nan},
                {"top_p": -0.5}, {"min_p": 2}, {"timeout": -1}, {"timeout": math.nan}, {"seed": -1}, {"json_schema": "{"},
                {"regex": "("}, {"regex": "a", "lark": "b"}, {"stop": "\ud800"},
            ):  # fmt: skip
                with self.assertRaises(haversack.InvalidInput, msg=options):
                    engine.complete("a", **options)
            with self.assertRaises(haversack.InvalidInput):
                engine.complete("\ud800")
            with self.assertRaises(TypeError):
                engine.complete(b"a")
            with self.assertRaises(haversack.TooLarge):
                engine.complete("a" * (1 << 20))
            for name in ("a/b", "", "caf\xe9"):
                with self.assertRaises(haversack.InvalidInput):
                    engine.conversation(name)
            for level in ("hot", "", "fair"):
                with self.assertRaises(haversack.InvalidInput):
                    engine.pressure(level)
            with self.assertRaises(haversack.InvalidInput):
                engine.trim(-1)
            with self.assertRaises(haversack.Unsupported):
                engine.embed("cat")
            anna = engine.conversation("anna")
            with self.assertRaises(haversack.NotFound):
                anna.recall(99)
            answer = anna.say("Go on.", max_tokens=800, ignore_end=True)
            next(answer)
            with self.assertRaises(haversack.Conflict):
                anna.fork("anna")
            answer.cancel()
            answer.text()

    def test_a_closed_engine_says_so(self):
        engine = opened()
        anna = engine.conversation("anna")
        engine.close()
        engine.close()
        for call in (engine.memory, engine.suspend, anna.turns, lambda: anna.say("a"), lambda: engine.complete("a")):
            with self.assertRaises(haversack.Closed) as raised:
                call()
            self.assertEqual(raised.exception.kind, "closed")

    def test_handles_are_not_pickled(self):
        with opened() as engine:
            answer = engine.complete("a", max_tokens=2)
            for handle in (engine, engine.conversation("anna"), answer):
                for refuse in (pickle.dumps, copy.copy, copy.deepcopy):
                    with self.assertRaisesRegex(TypeError, "cannot be pickled"):
                        refuse(handle)


class Threads(unittest.TestCase):
    def test_others_run_while_one_waits(self):
        with opened() as engine:
            counted = 0
            ended = threading.Event()

            def read():
                engine.complete("a", **ENDLESS).text()
                ended.set()

            reader = threading.Thread(target=read)
            reader.start()
            while not ended.is_set():
                counted += 1
                time.sleep(0)
            reader.join()
            self.assertGreater(counted, 100)

    def test_another_thread_cancels(self):
        with opened() as engine:
            answer = engine.complete("a", **ENDLESS)
            next(answer)
            thread = threading.Thread(target=answer.cancel)
            thread.start()
            answer.text()
            thread.join()
            self.assertEqual(answer.report.finish, "cancelled")

    def test_ctrl_c_ends_a_wait(self):
        # In a process of its own: unittest has a handler too.
        program = (
            "import haversack, os, signal, sys, threading, time\n"
            f"engine = haversack.Engine({MODEL!r}, memory='64M', threads=1, batch=1, queue=4)\n"
            "first = engine.complete('a', max_tokens=1500, ignore_end=True)\n"
            "waits = engine.complete('b', max_tokens=1500, ignore_end=True)\n"
            "threading.Timer(0.05, lambda: os.kill(os.getpid(), signal.SIGINT)).start()\n"
            "try:\n"
            "    waits.text()\n"
            "    print('it ended')\n"
            "except KeyboardInterrupt:\n"
            "    print('interrupted')\n"
        )
        output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
        self.assertEqual((output.stdout, output.stderr, output.returncode), ("interrupted\n", "", 0))

    @unittest.skipUnless(hasattr(os, "fork"), "no fork here")
    def test_a_forked_process_has_no_engine(self):
        with opened() as engine:
            anna = engine.conversation("anna")
            child = os.fork()
            if child == 0:
                # Rather than waiting for a thread that is not there.
                signal.alarm(60)
                code = 1
                try:
                    anna.turns()
                except haversack.Unsupported:
                    code = 0
                del anna
                os._exit(code)
            self.assertEqual(os.waitpid(child, 0)[1], 0)
            self.assertEqual(anna.turns(), [])


class Leaks(unittest.TestCase):
    def test_nothing_is_left_of_many_cycles(self):
        before = threads()
        engine = opened()
        for cycle in range(CYCLES):
            if cycle % 50 == 49:
                engine.close()
                engine = opened()
            talk = engine.conversation("talk", system="Be brief.")
            answer = talk.say("Go on.", max_tokens=40, ignore_end=True)
            next(answer)
            if cycle % 3 == 0:
                answer.cancel()
                answer.text()
            del answer
            talk.delete()
        held = engine.memory()
        self.assertEqual((held.active, held.waiting), (0, 0))
        engine.close()
        del engine, talk
        self.assertEqual(live(Engine, haversack.Conversation, haversack.Answer), 0)
        self.assertEqual(threads(), before)


class Files(unittest.TestCase):
    def test_a_conversation_outlives_its_engine(self):
        with tempfile.TemporaryDirectory() as folder:
            with opened(sessions_dir=folder) as engine:
                engine.conversation("anna").say("Hello.", max_tokens=4).text()
            with opened(sessions_dir=folder) as engine:
                self.assertEqual([listed.name for listed in engine.conversations()], ["anna"])
                self.assertEqual([turn.text for turn in engine.conversation("anna").turns()], ["Hello."])


if __name__ == "__main__":
    unittest.main()
