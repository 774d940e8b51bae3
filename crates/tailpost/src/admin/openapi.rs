//! Routes together with what is said about them: the OpenAPI document has each of them, and nothing
//! else.

use axum::Router;
use axum::handler::Handler;
use axum::http::Method;
use axum::routing::{MethodFilter, on};
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde_json::{Map, Value, json};

use super::api::AGGREGATE;
use super::problem::ApiError;
use crate::config::Role;

/// Where the document is served.
pub(super) const PATH: &str = "/api/v1/openapi.json";

/// A method of a path, as clients need to know it.
#[derive(Debug, Clone)]
pub(crate) struct Operation {
    method: Method,
    path: &'static str,
    summary: &'static str,
    role: Option<Role>,
    parameters: Vec<Value>,
    body: Option<Value>,
    answers: Vec<(u16, &'static str, Content)>,
}

#[derive(Debug, Clone)]
enum Content {
    Nothing,
    Json(fn(&mut SchemaGenerator) -> Schema),
    Text(&'static str),
}

impl Operation {
    pub(super) fn get(path: &'static str, summary: &'static str) -> Self {
        Self::new(Method::GET, path, summary, Some(Role::Viewer))
    }

    pub(super) fn post(path: &'static str, summary: &'static str) -> Self {
        Self::new(Method::POST, path, summary, Some(Role::Operator))
    }

    pub(super) fn delete(path: &'static str, summary: &'static str) -> Self {
        Self::new(Method::DELETE, path, summary, Some(Role::Operator))
    }

    fn new(method: Method, path: &'static str, summary: &'static str, role: Option<Role>) -> Self {
        let parameters = path_parameters(path);
        Self { method, path, summary, role, parameters, body: None, answers: Vec::new() }
    }

    /// Answers everybody.
    pub(super) fn open(self) -> Self {
        Self { role: None, ..self }
    }

    pub(super) fn needs(self, role: Role) -> Self {
        Self { role: Some(role), ..self }
    }

    /// What its query may have: the fields of `T`.
    pub(super) fn query<T: JsonSchema>(mut self) -> Self {
        let mut schema = request::<T>();
        for (name, schema) in schema["properties"].as_object_mut().into_iter().flatten() {
            let said = schema.as_object_mut().and_then(|it| it.remove("description"));
            // A parameter is left out, and never null.
            if let Some(kind) = schema["type"].get(0).or(schema["anyOf"].get(0)).cloned() {
                let is_type = kind.is_string();
                *(if is_type { &mut schema["type"] } else { &mut *schema }) = kind;
            }
            self.parameters.push(json!({
                "name": name, "in": "query", "description": said, "schema": schema,
            }));
        }
        self
    }

    /// Only about what is as it was when it was shown.
    pub(super) fn if_match(mut self) -> Self {
        let said = "`etag` of what was shown: refused with 412 if it has changed since";
        self.parameters.push(json!({
            "name": "If-Match", "in": "header", "description": said,
            "schema": { "type": "string" },
        }));
        self
    }

    /// But for this parameter.
    pub(super) fn without(mut self, parameter: &str) -> Self {
        self.parameters.retain(|it| it["name"] != parameter);
        self
    }

    pub(super) fn body<T: JsonSchema>(self) -> Self {
        Self { body: Some(request::<T>()), ..self }
    }

    pub(super) fn answers<T: JsonSchema>(mut self, status: u16, said: &'static str) -> Self {
        let schema = SchemaGenerator::subschema_for::<T>;
        self.answers.push((status, said, Content::Json(schema)));
        self
    }

    pub(super) fn answers_text(mut self, said: &'static str, kind: &'static str) -> Self {
        self.answers.push((200, said, Content::Text(kind)));
        self
    }

    pub(super) fn answers_nothing(mut self, status: u16, said: &'static str) -> Self {
        self.answers.push((status, said, Content::Nothing));
        self
    }

    pub(super) fn path(&self) -> &'static str {
        self.path
    }

    fn document(&self, schemas: &mut SchemaGenerator) -> Value {
        let mut responses = Map::new();
        for (status, said, content) in &self.answers {
            let content = match content {
                Content::Nothing => json!({ "description": said }),
                Content::Json(schema) => {
                    let content = json!({ "application/json": { "schema": schema(schemas) } });
                    json!({ "description": said, "content": content })
                }
                Content::Text(kind) => json!({
                    "description": said, "content": { *kind: { "schema": { "type": "string" } } },
                }),
            };
            responses.insert(status.to_string(), content);
        }
        responses.insert("default".into(), json!({ "$ref": "#/components/responses/Problem" }));
        let mut document = json!({
            "operationId": self.id(),
            "summary": self.summary,
            "parameters": self.parameters,
            "responses": responses,
        });
        match self.role {
            Some(role) => {
                let said = format!("Needs the role {}, where there are roles.", role.name());
                document["description"] = said.into();
            }
            None => document["security"] = json!([]),
        }
        if let Some(schema) = &self.body {
            let content = json!({ "application/json": { "schema": schema } });
            document["requestBody"] = json!({ "required": true, "content": content });
        }
        document
    }

    fn id(&self) -> String {
        let words = self.path.split(|it: char| !it.is_ascii_alphanumeric());
        let words = words.filter(|it| !it.is_empty() && *it != "api" && *it != "v1");
        words.fold(self.method.as_str().to_ascii_lowercase(), |id, word| format!("{id}_{word}"))
    }
}

/// What a request may have, and nothing else.
fn request<T: JsonSchema>() -> Value {
    let settings = SchemaSettings::draft2020_12().with(|it| it.inline_subschemas = true);
    settings.for_deserialize().into_generator().subschema_for::<T>().to_value()
}

fn path_parameters(path: &str) -> Vec<Value> {
    let names = path.split('{').skip(1).filter_map(|it| it.split('}').next());
    let schema = |name: &str| match name {
        "id" => json!({ "type": "string", "format": "uuid" }),
        "number" => json!({ "type": "integer", "minimum": 0, "maximum": i64::MAX }),
        "aggregate" => {
            json!({ "type": "string", "pattern": AGGREGATE, "examples": ["order:o-17"] })
        }
        _ => json!({ "type": "string", "minLength": 1 }),
    };
    let parameter = |name: &str| json!({ "name": name, "in": "path", "required": true, "schema": schema(name) });
    names.map(parameter).collect()
}

/// Routes, each with its operation.
pub(crate) struct Api<S> {
    router: Router<S>,
    operations: Vec<Operation>,
}

impl<S: Clone + Send + Sync + 'static> Api<S> {
    pub(super) fn new() -> Self {
        Self { router: Router::new(), operations: Vec::new() }
    }

    /// # Panics
    ///
    /// If the path has this method already.
    pub(super) fn on<H, T>(mut self, operation: Operation, handler: H) -> Self
    where
        H: Handler<T, S>,
        T: 'static,
    {
        let filter = MethodFilter::try_from(operation.method.clone()).expect("a usual method");
        self.router = self.router.route(operation.path, on(filter, handler));
        self.operations.push(operation);
        self
    }

    pub(super) fn merge(mut self, other: Self) -> Self {
        self.router = self.router.merge(other.router);
        self.operations.extend(other.operations);
        self
    }

    pub(super) fn with_state<O>(self, state: S) -> Api<O> {
        Api { router: self.router.with_state(state), operations: self.operations }
    }

    pub(super) fn into_parts(self) -> (Router<S>, Vec<Operation>) {
        (self.router, self.operations)
    }
}

/// The document of these operations.
pub(super) fn document(of: &str, operations: &[Operation]) -> Value {
    let settings = SchemaSettings::draft2020_12()
        .with(|it| it.definitions_path = "/components/schemas".into());
    let mut schemas = settings.for_serialize().into_generator();
    let mut paths = Map::new();
    for operation in operations {
        let path = paths.entry(operation.path).or_insert_with(|| json!({}));
        path[operation.method.as_str().to_ascii_lowercase()] = operation.document(&mut schemas);
    }
    schemas.subschema_for::<ApiError>();
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": format!("Tailpost {of}"),
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Fields may be added to answers. Changes are made with \
                            `Content-Type: application/json`.",
            "license": { "name": "MIT OR Apache-2.0" },
        },
        "servers": [{ "url": "/" }],
        "security": [{ "bearer": [] }, {}],
        "paths": paths,
        "components": {
            "securitySchemes": { "bearer": { "type": "http", "scheme": "bearer" } },
            "schemas": schemas.take_definitions(true),
            "responses": { "Problem": {
                "description": "What went wrong, as RFC 9457 has it",
                "content": { "application/problem+json": {
                    "schema": { "$ref": "#/components/schemas/Problem" },
                } },
            } },
        },
    })
}
