"""A web application of one page."""
import flask

app = flask.Flask(__name__)


@app.get("/")
def page():
    return "from flask\n"
