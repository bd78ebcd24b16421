-- Switches between BookKeeper clusters, one row each, with what their steps have come to.
-- version: 1
-- cluster string: The Pulsar cluster.
-- switch string: Source, target and epoch, as `old-new-1`.
-- source string: The BookKeeper cluster that everything comes from.
-- target string: The one that it goes to.
-- epoch bigint: Number of the directive.
-- attempts bigint: How often it was asked for, as far as that led to a step.
-- phase string: Of its newest step.
-- begun_at timestamp: When its first step was decided.
-- last_at timestamp: When its newest step was decided, or ended.
-- copied bigint: Ledgers that were copied, or compared as they were there.
-- bytes bigint: Their lengths.
-- promoted bigint: Records whose attribution was changed, those that rolled over among them.
-- rolled_over bigint: Subscriptions that had a new ledger on the target when they were to be changed.
-- failed bigint: Ledgers that failed in the newest attempt.
-- superseded bigint: Steps that others had made needless or impossible; they are decided anew.
-- deleted bigint: Old copies that were deleted.
-- open_steps bigint: Steps that have not ended.
WITH newest AS (
  SELECT cluster, switch, max(attempt) AS attempts, max(seq) AS seq FROM bookie_steps GROUP BY cluster, switch
)
SELECT s.cluster, s.switch, min(s.source) AS source, min(s.target) AS target, max(s.epoch) AS epoch,
       max(n.attempts) AS attempts,
       max(CASE WHEN s.seq = n.seq THEN s.phase END) AS phase,
       min(s.decided_at) AS begun_at,
       max(coalesce(s.ended_at, s.decided_at)) AS last_at,
       count(DISTINCT CASE WHEN s.action IN ('copy', 'verify') AND s.status = 'applied' THEN s.ledger END) AS copied,
       sum(CASE WHEN s.action IN ('copy', 'verify') AND s.status = 'applied' THEN s.bytes ELSE 0 END) AS bytes,
       count(DISTINCT CASE WHEN s.action IN ('cas_attribution', 'forward_owner', 'rollover_fallback')
                            AND s.status = 'applied' THEN s.object END) AS promoted,
       count(DISTINCT CASE WHEN s.action = 'rollover_fallback' AND s.status = 'applied' THEN s.object END) AS rolled_over,
       count(DISTINCT CASE WHEN s.status = 'failed' AND s.attempt = n.attempts THEN s.ledger END) AS failed,
       sum(CASE WHEN s.status = 'superseded' THEN 1 ELSE 0 END) AS superseded,
       sum(CASE WHEN s.action = 'delete' AND s.status = 'applied' THEN 1 ELSE 0 END) AS deleted,
       sum(CASE WHEN s.status IN ('open', 'intent') THEN 1 ELSE 0 END) AS open_steps
FROM bookie_steps s
JOIN newest n ON n.cluster = s.cluster AND n.switch = s.switch
GROUP BY s.cluster, s.switch
