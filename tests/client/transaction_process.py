"""A transactional producer as a process: commits a message of every key again and again, and prints each number."""

from __future__ import annotations

import json
import sys

from anabranch_client import TransactionalProducer
from anabranch_client.errors import TransactionAborted


def main(order: str) -> None:
    """Run until killed."""
    asked = json.loads(order)
    number = 0
    with TransactionalProducer(asked["config"], asked["topic"], asked["id"], 60.0) as producer:
        while True:
            producer.begin_transaction()
            try:
                for key in asked["keys"]:
                    producer.produce(f"{asked['life']}-{number}", key)
                producer.commit_transaction(120)
            except TransactionAborted:
                continue
            print(number, flush=True)
            number += 1


if __name__ == "__main__":
    main(sys.argv[1])
