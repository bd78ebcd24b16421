"""HTTP listener shared by controller, page and metrics; bounds everything that anonymous clients send.

- `server`       a bound port, uvicorn's configuration and its start and end
- `anonymous`    checks that need no token, and the pace of answers to clients without one
- `protocol`     deadlines and bounds of one connection
- `heads`        heads of requests that are refused before they are parsed
- `connections`  how many connections there are, and which give way to new ones
- `fair_queue`   fair queue of requests by client, and the pace of refusals by network
- `bodies`       request bodies, read before a request is handled
- `names`        the names of `Host` and the origins of browsers
"""
