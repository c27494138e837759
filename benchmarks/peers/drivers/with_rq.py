"""RQ on Redis: a pool of its workers, each of which forks for each job."""

import protocol
from redis import Redis
from rq import Queue

queue = Queue("bench", connection=Redis.from_url(protocol.URL))


def note():
    protocol.note()


def one(jobs):
    for _ in range(jobs):
        queue.enqueue("with_rq.note", result_ttl=0)


def bulk(jobs):
    for begin in range(0, jobs, 1000):
        queue.enqueue_many([Queue.prepare_data("with_rq.note", result_ttl=0) for _ in range(min(1000, jobs - begin))])


def work():
    protocol.become(
        "rq", "worker-pool", "bench", "--num-workers", str(protocol.CONCURRENCY), "--url", protocol.URL, "--quiet"
    )


if __name__ == "__main__":
    protocol.drive(setup=lambda: None, work=work, one=one, bulk=bulk)
