"""The layout store: topics, subscriptions, consumers and policies as records (PIP-468 "ScalableTopicResources").

`reader` reads them; a `transaction` collects what one change writes and announces; `store` commits it for the leader.
"""
