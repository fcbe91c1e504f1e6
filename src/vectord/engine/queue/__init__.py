"""From one model's texts to its devices and back: admission, the queue, batches, threads.

    runner.py ─▶ scheduler.py (which texts next; lane.py: fair shares) ─▶ worker.py (threads) ─▶ execution.py (a batch)

devices.py chooses the device, packing.py makes a batch's arrays, retries.py and hangs.py handle failures. Imports
compute's backend interface, text and checkpoints. Read runner.py first.
"""
