-- Loads of segments, each from the batch that took it in to the next one of its segment. What changes little is not on
-- record: a load stands until another one is.
-- version: 1
-- topic string: The topic.
-- segment_id bigint: The segment.
-- msg_rate_in double: Messages in a second.
-- bytes_rate_in double: Bytes in a second.
-- msg_rate_out double: Messages out a second.
-- bytes_rate_out double: Bytes out a second.
-- cause string: Why it was taken: `first`, `changed` or `crossed`.
-- reporter string: Who measured it.
-- sampled_at timestamp: When, by the reporter's clock.
-- valid_from timestamp: Time of the batch that took it in.
-- valid_to timestamp: When the next one was taken in; null: it is the newest (also of a segment that is sealed).
-- day date: UTC date of `valid_from`.
SELECT topic, segment_id, msg_rate_in, bytes_rate_in, msg_rate_out, bytes_rate_out, cause, reporter, sampled_at,
       accepted_at AS valid_from,
       lead(accepted_at) OVER (
         PARTITION BY topic, segment_id ORDER BY accepted_at, kafka_partition, kafka_offset) AS valid_to,
       day
FROM segment_load
