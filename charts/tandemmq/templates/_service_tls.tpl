{{/*
Certificates between services: how far a release is closed, whose certificates there are, and how a pod gets its own.

A release is closed in steps, each of which works with the one before and the one after it:
0 open; 1 calls with and without TLS are taken; 2 and all call with TLS; 3 nobody is taken without a certificate.
*/}}

{{/* The step that a pod's template is at: a PodSpec. */}}
{{- define "tandemmq.stepOfPod" -}}
{{- $step := 0 }}
{{- range default list (first .containers).env }}
  {{- if eq .name "TANDEMMQ_SERVICE_TLS_MODE" }}{{ $step = max $step (get (dict "permissive" 1 "enforcing" 3) .value | int) }}{{ end }}
  {{- if and (eq .name "TANDEMMQ_SERVICE_TLS_CALL") (eq .value "true") }}{{ $step = max $step 2 }}{{ end }}
{{- end }}
{{- $step }}
{{- end }}

{{/*
Brokers' and NameServers' sets as they run, JSON: a list of {name, step, lowest, whole}. Not whole: some of its pods may still
be at the step before, `lowest`. Empty at an install, and where a rendering sees no cluster.
*/}}
{{- define "tandemmq.runningServices" -}}
{{- $found := list }}
{{- if .Release.IsUpgrade }}
{{- range (lookup "apps/v1" "StatefulSet" (include "tandemmq.namespace" .) "").items }}
  {{- $labels := default dict .metadata.labels }}
  {{- if and (eq (get $labels "app.kubernetes.io/instance") $.Release.Name) (eq (get $labels "app.kubernetes.io/name") (include "tandemmq.name" $)) }}
    {{- $status := default dict .status }}
    {{- $whole := and (eq (get $status "currentRevision") (get $status "updateRevision")) (ge (get $status "observedGeneration" | int64) (get .metadata "generation" | int64)) }}
    {{- $step := include "tandemmq.stepOfPod" .spec.template.spec | int }}
    {{- $found = append $found (dict "name" .metadata.name "step" $step "lowest" (ternary $step (max 0 (sub $step 1)) $whole) "whole" $whole) }}
  {{- end }}
{{- end }}
{{- end }}
{{- toJson $found }}
{{- end }}

{{/* The step of this rendering. Kept, for every look at the cluster is a call. */}}
{{- define "tandemmq.serviceTlsStep" -}}
{{- if not (hasKey .Values "serviceTlsStep") }}
  {{- $security := .Values.security }}
  {{- $step := 3 }}
  {{- if eq $security.serviceTlsMode "disabled" }}{{ $step = 0 }}
  {{- else if eq $security.serviceTlsMode "permissive" }}{{ $step = ternary 2 1 $security.serviceTlsCall }}
  {{- else if eq $security.serviceTlsMode "auto" }}
    {{- range include "tandemmq.runningServices" . | fromJsonArray }}
      {{- $step = min $step (add 1 .lowest) }}
    {{- end }}
    {{- /* A name that no certificate can have. */ -}}
    {{- if not (regexMatch "^[A-Za-z0-9_-]+$" .Values.clusterName) }}{{ $step = 0 }}{{ end }}
  {{- end }}
  {{- $_ := set .Values "serviceTlsStep" $step }}
{{- end }}
{{- .Values.serviceTlsStep }}
{{- end }}

{{/* disabled, permissive or enforcing. */}}
{{- define "tandemmq.serviceTlsMode" -}}
{{- index (list "disabled" "permissive" "permissive" "enforcing") (include "tandemmq.serviceTlsStep" . | int) }}
{{- end }}

{{/* Whether services show each other certificates: "true" or "". */}}
{{- define "tandemmq.serviceTls" -}}
{{- if gt (include "tandemmq.serviceTlsStep" . | int) 0 }}true{{ end }}
{{- end }}

{{/* Whether the chart makes the certificates itself: "true" or "". */}}
{{- define "tandemmq.ownCertificates" -}}
{{- if and (include "tandemmq.serviceTls" .) (not .Values.security.existingSecretPrefix) (not .Values.security.certManager.issuerRef.name) }}true{{ end }}
{{- end }}

{{/*
Whose certificates there are, by the end of their Secret's name, as YAML: `identity`, as `tandemmq certs make` has it, and
`names`, the DNS names of servers.
*/}}
{{- define "tandemmq.bearers" -}}
{{- $server := printf "%s.tandemmq" (lower .Values.clusterName) }}
{{- $bearers := dict "nameserver" (dict "identity" "nameserver" "names" (list $server)) "admin" (dict "identity" "admin/repair") "hook" (dict "identity" "hook") }}
{{- if .Values.consistency.enabled }}{{ $_ := set $bearers "consistency" (dict "identity" "consistency") }}{{ end }}
{{- range .Values.brokerGroups }}
{{- $_ := set $bearers (printf "broker-%s" .name) (dict "identity" (printf "broker/%s" .name) "names" (list $server (printf "%s.%s" (lower .name) $server))) }}
{{- end }}
{{- toYaml $bearers }}
{{- end }}

{{/* Secret with a service's certificate: (list root "broker-GROUP"); `ca`: with the chart's own CA. */}}
{{- define "tandemmq.serviceSecret" -}}
{{- $root := index . 0 }}
{{- default (printf "%s-service" (include "tandemmq.fullname" $root)) $root.Values.security.existingSecretPrefix }}-{{ index . 1 }}
{{- end }}

{{/* Variables of a container that shows a certificate. Not in its settings: the command line and preStop read them, too. */}}
{{- define "tandemmq.serviceTlsEnvironment" -}}
{{- if include "tandemmq.serviceTls" . }}
- name: TANDEMMQ_SERVICE_TLS_MODE
  value: {{ include "tandemmq.serviceTlsMode" . }}
- name: TANDEMMQ_SERVICE_TLS_PATH
  value: /etc/tandemmq-service-tls
- name: TANDEMMQ_SERVICE_TLS_CALL
  value: {{ ge (include "tandemmq.serviceTlsStep" . | int) 2 | quote }}
{{- end }}
{{- end }}

{{- define "tandemmq.serviceTlsMount" -}}
{{- if include "tandemmq.serviceTls" . }}
- {name: service-tls, mountPath: /etc/tandemmq-service-tls, readOnly: true}
{{- end }}
{{- end }}

{{/* (list root "broker-GROUP"). The keys are named: a pod waits until its Secret has them all, unless it only sleeps. */}}
{{- define "tandemmq.serviceTlsVolume" -}}
{{- if include "tandemmq.serviceTls" (index . 0) }}
- name: service-tls
  secret:
    secretName: {{ include "tandemmq.serviceSecret" . | quote }}
    {{- if not (index . 0).Values.diagnosticMode.enabled }}
    items:
      - {key: tls.crt, path: tls.crt}
      - {key: tls.key, path: tls.key}
      - {key: ca.crt, path: ca.crt}
    {{- end }}
{{- end }}
{{- end }}

{{/* The pod that makes what is missing and renews what is due: (dict root options). */}}
{{- define "tandemmq.certsTemplate" }}
{{- $ := .root }}
{{- $certificates := $.Values.security.certificates }}
{{- $command := list "tandemmq" "certs" "make" }}
{{- range $name, $bearer := include "tandemmq.bearers" $ | fromYaml }}{{ $command = append $command $bearer.identity }}{{ end }}
{{- $prefix := include "tandemmq.serviceSecret" (list $ "ca") | trimSuffix "-ca" }}
{{- $command = concat $command (list "--cluster" $.Values.clusterName "--secrets" $prefix "--namespace" (include "tandemmq.namespace" $) "--due" "--days" ($certificates.days | toString)) }}
metadata:
  {{- include "tandemmq.podMetadata" (list $ "certs" .options dict dict) | nindent 2 }}
spec:
  restartPolicy: OnFailure
  serviceAccountName: {{ include "tandemmq.fullname" $ }}-certs
  automountServiceAccountToken: true
  {{- include "tandemmq.podSpec" (list $ .options dict list) | nindent 2 }}
  containers:
    - name: certs
      {{- include "tandemmq.container" (list $ .options $.Values.admin.image) | nindent 6 }}
      {{- if not $.Values.diagnosticMode.enabled }}
      command: {{ toJson $command }}
      {{- end }}
      env:
        - {name: HOME, value: /tmp}
        {{- with .options.extraEnv }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      resources:
        {{- toYaml $certificates.resources | nindent 8 }}
      volumeMounts:
        - {name: tmp, mountPath: /tmp}
  volumes:
    - {name: tmp, emptyDir: {}}
{{- end }}
