"""From one model's texts to its devices and back: admission, the queue, batches, threads.

    runner.py ─▶ scheduler.py (which texts next) ─▶ worker.py (threads) ─▶ execution.py (a batch)

batch.py defines what is queued, admission.py limits requests, devices.py chooses the device and keeps retries and hung
threads. Read runner.py first.
"""
