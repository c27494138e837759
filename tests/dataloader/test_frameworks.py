"""`Client` and `enqueue` in Django and Flask projects with packages `app`, `workers` and `pipelines` of their own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest

from tests.support import Databases
from tests.support.api_server import serving
from tests.support.processes import ROOT, clean_environment
from tests.support.queue_fixture import QueueFixture

DJANGO_FILES = {
    "app/settings.py": """
        import os
        from psycopg2.extensions import parse_dsn

        dsn = parse_dsn(os.environ["SHOP_DSN"])
        SECRET_KEY, USE_TZ, ROOT_URLCONF, ALLOWED_HOSTS = "x", True, "app.urls", ["testserver"]
        INSTALLED_APPS = ["pipelines"]
        DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
        DATABASES = {"default": {"ENGINE": "django.db.backends.postgresql", "NAME": dsn["dbname"],
            "HOST": dsn.get("host", ""), "PORT": dsn.get("port", ""), "USER": dsn.get("user", ""),
            "PASSWORD": dsn.get("password", "")}}
    """,
    "app/urls.py": """
        from django.urls import path
        from workers import views

        urlpatterns = [path("order/<int:number>/", views.place), path("trigger/", views.trigger)]
    """,
    "pipelines/models.py": """
        from django.db import models

        class Order(models.Model):
            number = models.IntegerField(unique=True)
    """,
    "workers/views.py": """
        import os
        from django.db import connection, transaction
        from django.http import HttpResponse
        from dataloader import Client, enqueue
        from pipelines.models import Order

        def place(request, number):
            with transaction.atomic():
                Order.objects.create(number=number)
                job_id = enqueue(connection, "order.confirm", {"n": number}, queue="shop", lock_key=f"o-{number}")
                if "fail" in request.GET:
                    raise RuntimeError(str(job_id))
            return HttpResponse(str(job_id))

        def trigger(request):
            job = Client(os.environ["SHOP_SERVICE"]).trigger("order.report", queue="shop", lock_key="report")
            return HttpResponse(job["job_id"])
    """,
    "main.py": """
        import os
        os.environ["DJANGO_SETTINGS_MODULE"] = "app.settings"
        import django
        from django.core.management import call_command
        from django.test import Client

        django.setup()
        call_command("migrate", "--run-syncdb", verbosity=0)
        client = Client()
        try:
            client.get("/order/1/?fail=1")
        except RuntimeError as error:
            print(error)
        print(client.get("/order/2/").content.decode())
        print(client.get("/trigger/").content.decode())
        from pipelines.models import Order
        print(Order.objects.count())
    """,
}
FLASK_FILES = {
    "app/__init__.py": """
        from flask import Flask
        from workers import views

        def create_app():
            app = Flask(__name__)
            app.register_blueprint(views.blueprint)
            return app
    """,
    "pipelines/models.py": """
        import os
        from psycopg2.extensions import parse_dsn
        from sqlalchemy import NullPool, create_engine
        from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

        engine = create_engine("postgresql+psycopg2://", connect_args=parse_dsn(os.environ["SHOP_DSN"]),
            poolclass=NullPool)

        class Base(DeclarativeBase):
            pass

        class Order(Base):
            __tablename__ = "flask_orders"
            number: Mapped[int] = mapped_column(primary_key=True)

        def open_session():
            return Session(engine)
    """,
    "workers/views.py": """
        import os
        from flask import Blueprint, request
        from dataloader import Client, enqueue
        from pipelines.models import Order, open_session

        blueprint = Blueprint("shop", __name__)

        @blueprint.get("/order/<int:number>/")
        def place(number):
            with open_session() as session, session.begin():
                session.add(Order(number=number))
                session.flush()
                job_id = enqueue(session, "order.confirm", {"n": number}, queue="shop", lock_key=f"o-{number}")
                if "fail" in request.args:
                    raise RuntimeError(str(job_id))
            return str(job_id)

        @blueprint.get("/trigger/")
        def trigger():
            service = Client(os.environ["SHOP_SERVICE"])
            return service.trigger("order.report", queue="shop", lock_key="report")["job_id"]
    """,
    "main.py": """
        from app import create_app
        from pipelines.models import Base, Order, engine, open_session

        Base.metadata.create_all(engine)
        app = create_app()
        app.testing = True  # errors reach the caller
        client = app.test_client()
        try:
            client.get("/order/1/?fail=1")
        except RuntimeError as error:
            print(error)
        print(client.get("/order/2/").text)
        print(client.get("/trigger/").text)
        with open_session() as session:
            print(session.query(Order).count())
    """,
}


@pytest.fixture(scope="module")
def dsn(databases: Databases) -> Iterator[str]:
    with databases.fresh() as made:
        yield made


@pytest.mark.parametrize("files", [DJANGO_FILES, FLASK_FILES], ids=["django", "flask"])
def test_project_with_packages_of_our_names_enqueues(dsn: str, tmp_path: Path, files: dict[str, str]):
    for package in ("app", "workers", "pipelines"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").touch()
    for name, text in files.items():
        indent = text[1 : len(text) - len(text.lstrip())]
        (tmp_path / name).write_text(text.replace(f"\n{indent}", "\n").lstrip(), encoding="utf-8")

    with serving(dsn) as url:
        environment = {**clean_environment(), "PYTHONPATH": f"{tmp_path}:{ROOT}", "SHOP_DSN": dsn, "SHOP_SERVICE": url}
        done = subprocess.run(
            [sys.executable, "main.py"],
            cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=100, check=False,
        )  # fmt: skip

    assert done.returncode == 0, done.stderr
    rolled_back, committed, triggered, orders = done.stdout.split()
    queue = QueueFixture(dsn)
    try:
        assert queue.queue.get(UUID(rolled_back)) is None
        assert queue.job(UUID(committed)).args == {"n": 2}
        assert queue.job(UUID(triggered)).task == "order.report"
        assert orders == "1"
    finally:
        queue.close()
