"""Integrations: adapters in the form that each framework expects. Each module needs its framework.

    fastapi        the claim as a dependency; the key and its answers in OpenAPI
    django         the HTTP middleware, for WSGI and ASGI
    django_inbox   an app: inbox and outbox in Django's own database, with migrations
    alembic        the tables of inbox and outbox, as a revision
    celery         a task class whose tasks run once per id
    dramatiq       a middleware: actors run once per message
    rq             a job class whose jobs run once per id
    taskiq         a function wrapper: tasks run once per id
    faststream     a middleware: subscribers handle a message once
    aws_lambda     batches of SQS, Kinesis and DynamoDB streams, and single events
    mcp            a middleware of FastMCP: tools of agents happen once
    langchain      a middleware of agents: tools happen once
    pydantic_ai    a toolset: tools happen once
    openai_agents  function tools that happen once

Starlette, Litestar, Flask and others use `twicesafe.asgi` or `twicesafe.wsgi` directly.
"""
